"""The sentences of this layer: errors before and while runs are played."""

from loadgen.sentences import Sentences


class RunMessage(Sentences):
    """Errors of hosts, workers, directories and checks, each with what to do."""

    # Hosts and workers
    NO_WORKERS = "workers cannot be started: {failure}"
    HOST_GONE = "host {host} is gone: {why}"
    NO_ANSWER_OF_HOST = "host {host} did not answer within {seconds:g} s ({request})"
    FEW_AGENTS = (
        "{joined} of {wanted:agent|agents} came to {address}:{port} within {seconds:g} s",
        ", {names}",
        "; {refused:connection was|connections were} refused, the last one because {refusal}",
        "; start the others so that they reach this address, or wait longer with --hosts-wait",
    )
    OTHER_VERSIONS = (
        "host {host} has {theirs} and this host {ours}; install the same on both, or use --ship"
    )
    SAME_MACHINE = (
        "hosts {first} and {second} are one machine and share its processors; use a separate "
        "machine for each"
    )
    NO_LISTENER = "agents cannot connect to {address}: {reason}; give an address of this machine"
    SOURCE_ADDRESS = (
        "no connection can be made from {address}: {reason}; give a --source-address of this host"
    )
    NO_BROKER_FROM_HOST = "no broker at {address}:{port}: {reason}; can it be reached from there?"

    # Directories
    NOT_A_JOURNAL = "{path} cannot be read as a {kind}; name another directory with --out"
    NOT_WRITTEN = "directory {path} cannot be written: {reason}; name another with --out"
    NOT_EMPTY = "directory {path} is not empty; name another with --out, or remove it"
    IN_USE = (
        "{path} is in use by another loadgen; wait until it has ended, or name another directory "
        "with --out"
    )
    DISK = (
        "cannot write {path}: {reason}; make room there and in /tmp, or name another disk with "
        "--out"
    )
    DAMAGED = "{path} is damaged; name another directory with --out"
    OTHER_BROKER = (
        "{path} was begun on {before}, and the broker is {broker} now; name another directory "
        "with --out"
    )
    OTHER_SEARCH = (
        "{path} holds another search, not the requested one; name another directory with --out"
    )
    OTHER_STEP_RULE = (
        "{path} was begun by a version of loadgen that chooses steps in another way; name another "
        "directory with --out"
    )
    OTHER_REPORT = (
        "{path} holds another report, not the requested one; name another directory with --out"
    )
    OTHER_CASE = "{path} holds a sweep of another case; name another directory with --out"
    OTHER_SWEEP = (
        "{path} holds another sweep: {rows} of its rows would not be in the table; request the "
        "same with more values, or name another directory with --out"
    )
    BROKER_WENT_AWAY = (
        "{broker} went away during this step, which is not stored; give the same command again "
        "when it is back"
    )

    # Sweeps
    FEW_REPETITIONS = "repeat: {repeat} is too small; use 1 or more"
    SWEPT_TWICE = "{field}: swept twice; give all its values at once"
    NOT_SWEPT = "{field}: it cannot be swept; run a sweep for each"
    NO_VALUE = "{field}: no value is given; write --set {field}=1,10,100"
    MANY_RUNS = "set: {total:run|runs} are too many; use at most {most:,}"
    SEARCHED = "{field}: it is searched and cannot be swept"

    # Calibration
    INTERRUPTED = "interrupted; no result is stored"
    ENDED_EARLY = "the play ended early: {ending}"
    FEW_DESCRIPTORS = "calibration needs more than {least} open files; raise ulimit -n"
    NOT_CONNECTED = ("calibration could not connect {devices:device|devices}", ": {failures}")
    NO_MESSAGE = "calibration counted no message of {group}; is this host overloaded?"
    NOT_STORED = "the calibration cannot be stored: {reason}"

    # Checks before a run
    PROCESSOR = "affinity: this process cannot use processor {missing}; use some of {usable}"
    OTHER_HOSTS = (
        "hosts: {wanted:host is|hosts are} requested and {count:host is|hosts are} there; give "
        "--listen to wait for agents or --spark-master to start them, or leave it at 1"
    )
    PRIVATE_BROKER = (
        "broker: a private broker listens on this machine alone and the hosts could not reach it; "
        "give --broker mqtt://ADDRESS:1883"
    )
    LACKS = "{what} (--anyway runs without it)"
    NOT_A_FILE = "{field}: {path} is not a file"
    NOT_UTF_8 = "{field}: {path} is not UTF-8 text"
    UNREADABLE = "{field}: {path} cannot be read: {reason}"
    SIZE_OF_PAYLOAD = (
        "size: the {field} file determines it, {size:byte|bytes} with the header; leave size out"
    )
    LARGE = "{field}: with its header a message has {size:byte|bytes}; use at most {most:,}"
    TLS_FILE = (
        "{field}: {path} cannot be read, and {devices} needs it; use existing files, with "
        "{{device}} from 0 on"
    )
    PASSWORD_ALONE = (
        "clients_file: {path} has a password without a username, which MQTT {mqtt} does not allow; "
        "use mqtt 5"
    )
    FEW_CLIENTS = (
        "clients_file: {path} has {rows:row|rows}, and {devices:device needs|devices need} one each"
    )
    SAME_CLIENT_ID = (
        "clients_file: {path} has the client_id that --client-id gives to device "
        "{device:,} of the {group}; use another for each device"
    )
    LONG_CLIENT_ID = (
        "client_id: {client_id} has {length} characters; use at most {most} with --mqtt 3.1"
    )

    # Live figures
    NO_METRICS = "metrics cannot be served at {address}: {reason}; choose another port or address"
    NO_OTLP = (
        "--otlp needs the OpenTelemetry SDK; get it with pip install "
        "opentelemetry-exporter-otlp-proto-http"
    )
    NO_COLLECTOR = (
        "no live figures can be sent to {url}; check that a collector listens there for OTLP over "
        "HTTP, and OTEL_EXPORTER_OTLP_HEADERS if it needs a login"
    )

    # Profiles of hosts
    UNKNOWN_PROFILE = "profile {name} is not known; use one of {names}"

    # Brokers
    OTHER_USERS = "broker: the URLs have different users; use the same in all"
    OTHER_SCHEME = "backend: another scheme than broker; use the same in all"
    NO_SUCH_NAME = "no broker at {broker}: {reason}; is the name right?"
    USERNAMES = (
        "clients_file: --access-control needs a username without blanks, colons, # and +, and a "
        "password in every row"
    )
    NOT_ONE_CONNECTED = (
        "none of {devices:device|devices} could connect: {reason}; check --broker and what the "
        "broker's log says"
    )

    # Secrets
    BAD_SECRET = (
        "{field}: {source} must hold a text of 1 to {most:,} bytes, a user one without zero bytes"
    )
    SECRET_SOURCE = "secret: give its source and not itself, as prompt, env:NAME or file:PATH"
    SHORT_SECRET = (
        "secret: it has {size:byte|bytes}; use {least} or more, as from openssl rand -hex 32"
    )
    NO_TERMINAL = "{field}: there is no terminal to ask at; use env:NAME or file:PATH"
    NO_VARIABLE = "{field}: the environment has no {variable}"
    READABLE = "{field}: other users may read {path} (mode {mode}); use chmod 600 {path}"

    # Crashes on request
    CRASH_SLOW = "the crash command did not end within {seconds:.0f} s"
    CRASH_FAILED = ("the crash command ended {ended}", ": {last_line}")

    # Finished runs
    NO_DEVICES = "run directory {path} has no rows of devices; use --per-device in the run"
    BAD_DEVICES = "run directory {path}: devices cannot be read: {error}"
    NOTHING_TO_SEAL = "{path} has no run.json to seal"
    EXISTS = "{path} exists; name another with --out"
    NO_DISCLOSURE = "{path} has no disclosure; name a run of {cases}"
    CHANGED_RUN = (
        "{path} was changed since the run ended: {changes}; name the directory as the run left it"
    )
    NO_REPETITION = "{path} does not repeat {run}: {reason}; name one with --repeat-run"
    DAMAGED_DOCUMENTS = "{path}: a document of it or of its repetition is damaged"
    NO_DOCUMENT = "{path} has no {name} ({reason}); name a run directory"
    BAD_DOCUMENT = "{path}: {name} is damaged, or of another version"
