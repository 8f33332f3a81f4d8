"""A little of the campaign of `python -m tests.fuzz`, and every find that was kept."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.kernels import digests
from tests.fuzz.targets import TARGETS, remove_scratch
from tests.programs import python

SEEDS = sorted((Path(__file__).parent / "seeds").glob("*/*"))
INPUTS = {"power": 15, "run-directory": 25, "scenario": 80}
FEW = 300


@pytest.fixture(scope="module", autouse=True)
def _scratch() -> Iterator[None]:
    yield
    remove_scratch()


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_is_mended(path: Path) -> None:
    target = TARGETS[path.parent.name]
    try:
        target.play(path.read_bytes())
    except target.errors as error:
        assert str(error).isprintable()


@pytest.mark.parametrize("name", TARGETS)
def test_any_input_ends_in_a_result_or_in_the_documented_error(name: str) -> None:
    target, chance = TARGETS[name], random.Random(name)
    corpus = target.corpus()
    for _ in range(INPUTS.get(name, FEW)):
        data = target.change(chance, chance.choice(corpus), corpus)
        try:
            target.play(data)
        except target.errors as error:
            assert str(error).isprintable(), data


def test_compiled_and_plain_kernels_make_the_same_of_anything() -> None:
    count = 100
    words = ("-W", "error::RuntimeWarning", "-m", "tests.fuzz.kernels", str(count))
    shown = python(*words, NUMBA_DISABLE_JIT="1")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.strip() == str(digests(count))
