"""Sentences of the layer for users. A field is written as its option."""

from loadgen.sentences import Sentences


class CaseMessage(Sentences):
    UNKNOWN_CASE = "case: {name} is unknown; use {known}{hint}"
    FILE_OF_OTHER_CASE = "case: the file is for {case}; use loadgen {case}"
    TWICE = "{key}: given twice, {ways}"
    FEW_PRODUCERS = "--devices: each topic needs a producer; use {topics} or more"
    ROOT = "{option}: {root} cannot begin a topic; use a text such as loadgen/front"
    PRIVATE_BRIDGE = (
        "{option}: loadgen cannot start such a bridge; use the URLs of yours: --broker and "
        "--backend"
    )
    BRIDGE_TOPIC = "--topic: not possible with a bridge; use --front-root and --backend-root"
    NOT_A_BRIDGE = (
        "--broker: {broker} is not a bridge that loadgen can start; use auto, mosquitto, or a URL "
        "with --backend"
    )
    NO_FRONT = "--backend: the front broker is missing; add its URL with --broker"
    OTHER_BACKENDS = (
        "--backends: {backends}, but --backend is given {urls:time|times}; leave it out"
    )
    ONE_FRONT = "--instances: a bridge has one front; leave out --instances and --separate-brokers"
    MANY_SUBSCRIBERS = (
        "--ratio: {topics:topic|topics} of {ratio:subscriber|subscribers} are too many; use at "
        "most {most:device|devices} in all"
    )
    NO_SLOW_SUBSCRIBERS = "--read-rate: there are no slow subscribers; add --slow-subscribers"
    SLOW_STEPS = "--slow-subscribers: not possible with --steps; leave one of them out"
    ALL_SLOW = (
        "--slow-subscribers: {slow:,} of {ratio:,} leave no others to compare with; use fewer than "
        "--ratio"
    )
    SLOW_TRANSPORT = "--slow-subscribers: TLS and WebSocket cannot read slowly; use mqtt://"
    PAIR_TOPIC = "--topic: the pair and the background need different topics; add {{group}}"
    NO_BACKGROUND = "--background-rate: there are no background devices; use --devices 1 or more"
    STORED_QOS = "--qos: brokers do not store messages of QoS 0; use 1 or 2"
    NO_CRASH = "--crash-command: the time of the crash is missing; add --crash-broker, such as 5s"
    CRASH_OF_URL = (
        "--crash-broker: loadgen can only kill a private broker; use --broker mosquitto, or add a "
        "--crash-command"
    )
    CRASH_LATE = "--crash-broker: {at_s:g} s is not inside the window; use less than {window_s:g} s"
    QUEUE_QOS = "--qos: a queue withholds acknowledgements, which QoS {qos} does not allow; use 1"
    QUEUE_MQTT = "--mqtt: {mqtt} has no shared subscriptions; use 5"
    MANY_CONSUMERS = "--consumers: there are too many; use at most {most:device|devices} in all"
    MANY_RESPONDERS = (
        "--responders: {responders:,} are more than the devices; use up to {devices:,}"
    )
    REQUEST_TOPIC = "--topic: requests and responses need different topics; add {{group}}"
    REQUEST_CHURN = (
        "--churn: at QoS {qos} a device that leaves would lose its responses; use --qos 2"
    )
    TOPIC_OF_GROUPS = "--topic: each group has a topic; leave it out"
    IN_GROUP = "group {group}: {fault}"
    GROUP_TWICE = "group: a name is given twice, of {names}; use a different name for each"
    NO_TOPIC = "group: none has a topic, so nothing is sent; use the case connburst"
    GROUP_NAME = "the name is not possible; use a letter, then letters, digits, _ and -"
    NO_COUNT = "count is missing; use a whole number from 1"
    NO_EFFECT = "{key} has no effect; use it with {needed}"
    SHARED_FILTER = "subscribe {filter} is shared; use it with mqtt 5"
    FILTER = "subscribe {filter} {fault}; use a filter such as plant/+/temperature"
    TOPICS_NO_EFFECT = "topics has no effect; use {{topic}} in a topic or filter"
    RETAINED_AGAIN = (
        "a device that returns gets retained messages again; leave out reconnect and churn"
    )
    SIZE_OF_PAYLOAD = "the payload file determines the size; leave size out"
    ENDPOINT = "endpoint: {endpoint} is not an address of --broker; use 1 to {count}"
