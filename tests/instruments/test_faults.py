import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from tests.instruments.faults import (
    ALWAYS,
    COUNTED_AS,
    NEVER,
    ON_DELIVERIES,
    Chance,
    Dice,
    FaultCounts,
    Faults,
    parse_faults,
)

_some = st.one_of(
    st.integers(1, 10**6).map(lambda every: Chance(every=every)),
    st.integers(1, 1000).map(lambda thousandth: Chance(probability=thousandth / 1000)),
)
_chances = st.just(NEVER) | _some


SHARES = (*ON_DELIVERIES, "withhold", "unsolicited", "drop", "session")
CODES = ("refuse", "reject", "subrefuse")


@given(
    st.builds(
        Faults,
        **dict.fromkeys(SHARES, _chances),
        **dict.fromkeys(CODES, st.integers(0x80, 0xFF)),
        **dict.fromkeys([f"{name}_share" for name in (*CODES, "subgrant")], _some),
        subgrant=st.integers(0, 1),
        reset_ns=st.integers(1, 10**12),
        delay_ns=st.integers(1, 10**12),
        delay_share=_some,
        stall_ns=st.integers(0, 10**12),
        ceiling=st.floats(1, 1e9),
        only=st.sampled_from(["", "a/#", "+/b", "#", "a@b"]),
        seed=st.integers(0, 2**40),
    )
)
@settings(deadline=None)
def test_every_fault_is_read_as_it_was_meant(faults: Faults) -> None:
    texts = [f"{name}={_text(getattr(faults, name))}" for name in SHARES] + [
        *(f"{n}={getattr(faults, n):#x}@{_text(getattr(faults, f'{n}_share'))}" for n in CODES),
        f"subgrant={faults.subgrant}@{_text(faults.subgrant_share)}",
        f"reset={faults.reset_ns}ns",
        f"delay={faults.delay_ns}ns@{_text(faults.delay_share)}",
        f"stall={faults.stall_ns}ns",
        f"ceiling={faults.ceiling!r}",
        f"only={faults.only}",
        f"seed={faults.seed}",
    ]
    assert parse_faults(",".join(texts)) == faults


def _text(chance: Chance) -> str:
    return f"1/{chance.every}" if chance.every else f"{chance.probability:g}"


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


@pytest.mark.parametrize(
    "text",
    [
        "loose=0.1",
        "lose",
        "lose=",
        "lose=2",
        "lose=-0.1",
        "lose=nan",
        "lose=1/0",
        "lose=1/x",
        "lose=0.1,lose=0.2",
        "delay=50",
        "delay=50h",
        "delay=2h",
        "delay=61m",
        "delay=5ms@2",
        "refuse=5",
        "refuse=256",
        "reject=0x10@1/2",
        "subrefuse=2",
        "subgrant=2",
        "reset=5",
        "misroute=2",
        "ceiling=-1",
        "ceiling=inf",
        "ceiling=k",
        "only=a/#/b",
        "only=a+",
        "only=\x1b[1m",
        "seed=x",
    ],
)
def test_nonsense_is_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_faults(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250


@given(st.integers(1, 50), st.integers(0, 300))
@settings(deadline=None)
def test_every_nth_is_exact(every: int, rolls: int) -> None:
    dice = Dice(Chance(every=every), "")
    assert sum(dice.roll() for _ in range(rolls)) == rolls // every


@given(st.integers(0, 2**32))
@settings(deadline=None)
def test_the_seed_decides(seed: int) -> None:
    first, second = (Dice(Chance(0.5), f"lose {seed}") for _ in range(2))
    drawn = [first.roll() for _ in range(200)]
    assert drawn == [second.roll() for _ in range(200)]
    assert 40 < sum(drawn) < 160


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
