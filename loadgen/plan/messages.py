"""Sentences of the layer for users. A field is written as its option."""

from loadgen.sentences import Sentences


class PlanMessage(Sentences):
    VALUE = "{option}: {fault}; use {allowed}"
    NOT_A_TABLE = "{where}: {value} is not a table; use {keys}"
    UNKNOWN_LINE = ("{where}: {key} is unknown{hint}", "; use {keys}")
    UNKNOWN_KEY = "{key}: unknown key{hint}"
    FILE_LONG = "{source} has more than {most:character|characters}"
    NOT_TOML = "{source} is not TOML: {reason}"
    NOT_OF_CASE = ("{option}: not an option of {case}", "; use it with {owners}")
    ONE_HOST = "--place: there is one host; use --hosts 2 or more"
    AFFINITY = "--affinity: {text} is not a list of processors; use numbers such as 0,2-5"
    NOTHING_REQUIRED = "--abort-on-fail: no condition can fail; add --require"
    TWO_PAYLOADS = "--payload-template: not possible with --payload; use one of them"
    LOGIN_WITHOUT_URL = "{option}: a private broker needs none; use it with the URL of a broker"
    LOGIN_IN_URL = "{option}: the URL of the broker has one, too; use one of them"
    KEY_ALONE = "--tls-key: a key needs a certificate; add --tls-certificate"
    PASSPHRASE_ALONE = "--tls-passphrase: there is no key to read; add --tls-certificate"
    CIPHERS_OF_1_3 = "--tls-ciphers: not possible with TLS 1.3; use --tls-version 1.2"
    RESUMED_CERTIFICATES = (
        "--tls-resume: a session belongs to one certificate, and each device has its own; "
        "use one --tls-certificate for all devices"
    )
    NOT_ENCRYPTED = "{option}: the connection is not encrypted; use mqtts:// or wss:// in the URL"
    INSTANCES_OF_URL = "--instances: not possible with a URL; use --broker mosquitto or nats"
    ONLY_PRIVATE = "{option}: only for a private broker; use --broker mosquitto or nats"
    ONE_CLIENT_ID = (
        "--client-id: {pattern} is the same for all devices; use a text with {{device}}, and with "
        "{{group}} if the case has several groups"
    )
    CLIENT_ID_OF_GROUPS = (
        "--client-id: {pattern} is the same for devices of several groups, which disconnect each "
        "other; use a text with {{group}} for {case}"
    )
    CLIENT_ID_BRACES = "--client-id: {place} {fault}; use {{device}} and {{group}}"
    ONE_TOPIC = "--topic: {pattern} is one topic for all; use a text with {{device}}"
    TOPIC = "{option}: {pattern} {fault}; use a text such as plant/{{device}}/temperature"
    WILL_BRACES = "--will: {place} is unknown; use {{device}} for the device's number"
    WILL_TOPIC = "--will: {topic} is not a topic; use one without + and #"
    DURABLE_QOS = "--durable: brokers do not store messages of QoS 0; use --qos 1 or 2"
    WITHHELD_QOS = "--acknowledge-every: not possible at QoS {qos}; use --qos 1"
    NO_BROKER = "--broker: no value is given; use auto, mosquitto, nats, reflector or a URL"
    REMOVED_BROKER = "--broker: {entry}: {removed}"
    JOINED_BROKERS = "--broker: {entry} cannot be joined with others; use several URLs"
    NOT_A_URL = "{option}: {url} is {fault}{hint}"
    URL_SCHEME = "{option}: {url} has an unknown scheme; use {schemes}"
    URL_HOST = "{option}: {url} has no host; use a URL such as mqtt://host:1883"
    SESSION_OF_3_1 = (
        "--mqtt: a broker of 3.1 does not report whether it kept a session; use 3.1.1 or 5 for "
        "--reconnect, --churn and a crash"
    )
    NO_ADDRESS = "--broker: it has no address; use mqtt://host:1883"
    PASSWORD_WITHOUT_USER = "a password needs a user name in MQTT {mqtt}; add one or use --mqtt 5"
    TOO_MANY_HOSTS = (
        "--hosts: each host needs a worker, and there is work for {useful:worker|workers}; use at "
        "most {useful:host|hosts}"
    )
    UNKNOWN_GROUP = "--place: the case has no group {group}; use {names}"
    IDLE_HOST = "--place: host {host} has no group; name a group for each host"
    UNKNOWN_HOST = (
        "--place: there is no host {text}; use 0 to {last} with --hosts {count}",
        ", or one of {labels}",
    )
    NETWORKS = (
        "--source-address: {networks:network|networks} for {count:host|hosts}; use one for each, "
        "or one for all"
    )
    NETWORK_SMALL = (
        "--source-address: {network} has no address for each of {count:host|hosts}; use a larger "
        "network, or one for each host, separated by commas"
    )
    NETWORK_FAMILY = (
        "--source-address: {network} is IPv{version} and the broker's address {host} is "
        "IPv{version_of_broker}; use addresses of one kind"
    )
    OVERLAP = (
        "the filters {first} and {second} of {group} overlap, and a broker may deliver one or two "
        "copies (MQTT 5, 3.3.4); use filters that match different topics"
    )
    SHARED_BY_GROUPS = (
        "{first} and {second} share {filter}, and one worker must count a shared "
        "subscription; use it in one group"
    )
    PLACE_OPEN = "--payload-template: {start} is not closed; write {start}}} or {start}:7}}"
    PLACE_UNKNOWN = "--payload-template: {{{name}}} is unknown; use {known}"
    PLACE_DIGITS = "--payload-template: {{{name}}} has {width} digits; use 1 to {most}"
    NO_PLACE = (
        "--payload-template: nothing to fill, such as {{sequence}}; use --payload for a file "
        "without such fields"
    )
    EMPTY_DESCRIPTION = "--sut: the file describes nothing; use {parts}"
