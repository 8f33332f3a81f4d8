import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.brokers.faults import ALWAYS, NEVER, Chance, Dice, Faults, parse_faults
from loadgen.errors import UsageError

_chances = st.one_of(
    st.just(NEVER),
    st.integers(1, 10**6).map(lambda every: Chance(every=every)),
    st.integers(1, 1000).map(lambda thousandth: Chance(probability=thousandth / 1000)),
)


@given(
    st.builds(
        Faults,
        lose=_chances,
        repeat=_chances,
        reorder=_chances,
        corrupt=_chances,
        drop=_chances,
        delay_ns=st.integers(1, 10**12),
        delay_share=_chances.filter(bool),
        stall_ns=st.integers(0, 10**12),
        refuse=st.integers(0x80, 0xFF),
        refuse_share=_chances.filter(bool),
        ceiling=st.floats(1, 1e9),
        only=st.sampled_from(["", "a/#", "+/b", "#", "a@b"]),
        seed=st.integers(0, 2**40),
    )
)
@settings(deadline=None)
def test_every_fault_is_read_as_it_was_meant(faults: Faults) -> None:
    shares = {name: getattr(faults, name) for name in ("lose", "repeat", "reorder", "corrupt")}
    texts = [f"{name}={_text(chance)}" for name, chance in shares.items()] + [
        f"drop={_text(faults.drop)}",
        f"delay={faults.delay_ns}ns@{_text(faults.delay_share)}",
        f"stall={faults.stall_ns}ns",
        f"refuse={faults.refuse:#x}@{_text(faults.refuse_share)}",
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
