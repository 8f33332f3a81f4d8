from hypothesis import given, settings
from hypothesis import strategies as st

from tests.instruments.faults import (
    ALWAYS,
    COUNTED_AS,
    NEVER,
    Chance,
    Dice,
    FaultCounts,
    Faults,
    parse_faults,
)


def test_reads_what_people_write() -> None:
    assert parse_faults("") == parse_faults("none") == Faults()
    assert parse_faults("lose=0.01, delay=50ms ,ceiling=5k") == Faults(
        lose=Chance(0.01), delay_ns=50_000_000, ceiling=5000.0
    )
    assert parse_faults("delay=1.5s@1/3,refuse=0x87@0.5,stall=2m") == Faults(
        delay_ns=1_500_000_000,
        delay_share=Chance(every=3),
        refuse=0x87,
        refuse_share=Chance(0.5),
        stall_ns=120 * 10**9,
    )
    assert parse_faults("refuse=135,only=a/+/#,seed=9") == Faults(
        refuse=135, refuse_share=ALWAYS, only="a/+/#", seed=9
    )


@given(st.integers(1, 50), st.integers(0, 300))
@settings(deadline=None)
def test_every_nth_is_exact(every: int, rolls: int) -> None:
    dice = Dice(Chance(every=every), "")
    assert sum(dice.roll() for _ in range(rolls)) == rolls // every


def test_a_fault_happens_as_often_as_it_says_and_has_its_count() -> None:
    faults = parse_faults("lose=1/3,delay=5ms@0.5,subgrant=0,reject=0x87@1/7,reset=1s")
    assert faults.chance("lose") == Chance(every=3)
    assert faults.chance("delay") == Chance(0.5)
    assert faults.chance("subgrant") == faults.chance("reset") == ALWAYS
    assert faults.on_deliveries and faults.on_publishes
    for name in COUNTED_AS:
        assert Faults().chance(name) == NEVER
        assert hasattr(FaultCounts(), COUNTED_AS[name])
    assert not Faults().on_deliveries
    assert not parse_faults("session=1/1,refuse=0x87").on_publishes
