"""The lines of `loadgen probe`."""

from loadgen.brokers.ask import Greeting
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.features import Feature
from loadgen.cli.probe import _lines
from loadgen.errors import BrokerRefusedError
from loadgen.run.survey import CaseAnswer, Survey
from loadgen.sentences import BROKER_TEXT

ENDPOINT = Endpoint("mqtt", "a", 1)


def test_each_cause_stands_once() -> None:
    where = ENDPOINT.redacted
    limits = [
        BROKER_TEXT.QOS_LIMIT(where=where, most=1, qos=2, use=f"--qos {number}")
        for number in range(19)
    ]
    refusal = BROKER_TEXT.OTHER_VERSION(where=where, version="5", answer="no", use="")
    survey = Survey(
        Greeting(ENDPOINT, None, (4,), None, 0.1, (BrokerRefusedError(refusal),)),
        "unknown",
        {
            "receive_maximum": Feature(None, "absent", BROKER_TEXT.MQTT_5_ONLY()),
            "server_keep_alive_s": Feature(None, "absent", BROKER_TEXT.MQTT_5_ONLY()),
            "payload_bytes": Feature(4096, "tried"),
            "maximum_packet_size_bytes": Feature(None, "default", unlimited=True),
            "maximum_qos": Feature(None, "tried", BROKER_TEXT.NO_TRIAL_ANSWER(trial_s=10)),
            "will_available": Feature(True, "tried"),
        },
        {
            "fanin": CaseAnswer(True, "3.1.1"),
            "specjms": CaseAnswer(False, "3.1.1", tuple(limits)),
            "bridge": CaseAnswer(None, "", ("not here",)),
        },
    )
    lines = [" ".join(line.split()) for line in _lines(survey)]
    assert lines[:10] == [
        "mqtt://a:1 does not report its name, MQTT 3.1.1 [1]",
        "",
        "receive maximum ✗ [2]",
        "server keep alive, s ✗ [2]",
        "payload, bytes 4,096",
        "maximum packet size, bytes none",
        "maximum qos ? [3]",
        "will ✓",
        "",
        "fanin ✓ MQTT 3.1.1",
    ]
    assert lines[10:12] == ["specjms ✗ [4]", "bridge ? [5]"]
    notes = [line for line in lines if line[:1].isdigit()]
    assert len(notes) == 5 and notes[3].endswith("(and 18 more alike)")
    assert not any(ENDPOINT.address in line for line in lines[1:])
