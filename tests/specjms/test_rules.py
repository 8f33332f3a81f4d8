"""The run rules: each kept, not kept, and not judged."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from loadgen.specjms.audit import Audit, AuditFinding, Recovery
from loadgen.specjms.rules import RunRule, run_rules, steady
from tests.specjms.test_audit import sound
from tests.specjms.test_messages import ARTICLE

S = 10**9
EVEN = [(at * S, (at + 1) * S, 100) for at in range(2400)]
WINDOWS = ((0, 600 * S), (600 * S, 2400 * S))
PASSED = Audit(())
SOUND: dict[str, Any] = {
    "window_s": 1800.0,
    "redelivered": 1,
    "recovery": None,
    "progress_s": 300.0,
    "course": EVEN,
    "windows": WINDOWS,
}
NEVER = ["the kit of SPECjms2007 over JMS (3.7, 4.1)", "atomic transactions (4.3)"]
"""The rules that every run breaks."""
RECOVERY = Recovery(900.0, S, 2 * S, 3 * S)


def rules(
    audit: Audit = PASSED, failures: Sequence[str] = (), as_specified: bool = True, **changed: Any
) -> list[RunRule]:
    seen = sound(**{**SOUND, **changed})
    return list(run_rules(seen, audit, failures, as_specified=as_specified))


def of(found: list[RunRule], kept: bool | None) -> list[str]:
    return [one.rule for one in found if one.holds is kept]


def test_a_sound_run_breaks_what_no_run_of_ours_keeps() -> None:
    found = rules()
    assert of(found, False) == NEVER
    assert of(found, None) == [
        "all queues stable (3.6.2)",
        "repetition equal or better (3.4)",
        "no optimization for the benchmark (3.8)",
        "one message at a time outside of transactions (4.2.1)",
        "recovery within 15 min (4.2.3)",
        "persistent messages in non-volatile storage (5.1)",
    ]
    assert len(found) == 21


FAILED = Audit((AuditFinding("pacing", "interaction 1", False, "", ""),))


@pytest.mark.parametrize(("changed", "broken"), ARTICLE["broken"])
def test_each_rule_is_broken_by_itself(changed: dict[str, Any], broken: str) -> None:
    assert set(of(rules(**changed), False)) == {*NEVER, broken}


def test_a_failed_audit_or_recovery_breaks_its_rule() -> None:
    assert set(of(rules(audit=FAILED), False)) == {*NEVER, "audit passed (3.6)"}
    away = rules(recovery=replace(RECOVERY, away=1))
    assert set(of(away, False)) == {*NEVER, "recovery within 15 min (4.2.3)"}


def test_what_was_not_seen_is_not_judged() -> None:
    order, marked, again = (
        "messages in order and not duplicated (4.2)",
        "redelivered messages are marked (4.2.2)",
        "recovery within 15 min (4.2.3)",
    )
    assert {order, marked} <= set(of(rules(), True))
    assert marked in of(rules(redelivered=0), None)
    assert order in of(rules(workers_silent=1), None)
    # After a requested failure, the order is not judged.
    recovered = rules(recovery=RECOVERY, duplicated=3)
    assert order in of(recovered, None)
    assert again in of(recovered, True)
    short = rules(recovery=replace(RECOVERY, limit_s=60.0))
    assert again in of(short, None)
    assert next(one.observed for one in short if one.rule == again) == "tried with 60 s only"


@pytest.mark.parametrize(
    ("course", "kept"),
    [
        (EVEN, True),
        # The received messages fall to nine tenths in the last part of the window.
        ([(a, b, 90 if a >= 2220 * S else 100) for a, b, _ in EVEN], False),
        # It is still rising when the warm-up ends.
        ([(a, b, 50 if a < 600 * S else 100) for a, b, _ in EVEN], False),
        # So few that chance explains them.
        ([(a, b, a // S % 50 == 0) for a, b, _ in EVEN], True),
        ([], False),
    ],
)
def test_throughput_is_steady_or_not(course: list[tuple[int, int, int]], kept: bool) -> None:
    assert steady(course, *WINDOWS)[0] is kept


def test_a_short_window_tells_nothing_of_steadiness() -> None:
    assert steady(EVEN, (0, 10 * S), (10 * S, 29 * S))[0] is None
    assert steady(EVEN, (0, 1 * S), (1 * S, 31 * S))[0] is None
    assert steady(EVEN, (0, 10 * S), (10 * S, 40 * S))[0] is True


def test_queues_are_stable_if_none_grew() -> None:
    depths = {"order": [(at * S, 5) for at in range(2400)]}
    stable = {one.rule: one for one in rules(depths=depths)}
    assert stable["all queues stable (3.6.2)"].holds is True
    assert "at most 5 messages" in stable["all queues stable (3.6.2)"].observed
    depths["offer"] = [(at * S, at) for at in range(2400)]
    stored = [(at * S, 60 + at) for at in range(0, 2400, 10)]
    by_broker = rules(depths={"order": depths["order"]}, stored=stored)
    assert "the broker's store by 1,770" in [one.observed for one in by_broker]
    grown = {one.rule: one for one in rules(depths=depths)}
    assert grown["all queues stable (3.6.2)"].holds is False
    assert grown["all queues stable (3.6.2)"].observed == "offer by 1,797"
