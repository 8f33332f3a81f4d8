import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.mqtt.topics import filter_matches, split_shared, topic_filter_fault, topic_name_fault
from tests.tables import rows_of

_levels = st.sampled_from(["a", "b", "", "$x", "ab"])
_topics = st.lists(_levels, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def _filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(_levels | st.just("+"), min_size=1, max_size=4))
    if draw(st.booleans()):
        levels.append("#")
    return "/".join(levels) or "+"


def _plainly_matches(topic_filter: str, topic: str) -> bool:
    """Match by section 4.7, level by level, in another way."""
    wanted, given_levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[-1] == "#":
        wanted.pop()
        if len(given_levels) < len(wanted):
            return False
        given_levels = given_levels[: len(wanted)]
    return len(wanted) == len(given_levels) and all(
        one in ("+", other) for one, other in zip(wanted, given_levels, strict=True)
    )


@given(_filters(), _topics)
def test_matches_as_the_specification_says(topic_filter: str, topic: str) -> None:
    assert filter_matches(topic_filter, topic) == _plainly_matches(topic_filter, topic)


def test_what_is_shared() -> None:
    assert split_shared("$share/g/a/#") == ("g", "a/#")
    assert split_shared("$share/g//a") == ("g", "/a")
    for plain in ("a", "$share/g", "$share//a", "$shares/g/a", "$share/g/"):
        assert split_shared(plain) == (None, plain)


class TestFaults:
    """Spec 4.7 and 4.8.2."""

    @pytest.mark.parametrize("topic", ["a", "/", "a//b", "$SYS/x", "a b", "ü"])
    def test_names(self, topic: str) -> None:
        assert topic_name_fault(topic) is None

    @pytest.mark.parametrize("topic", ["", "a/+", "#", "a#b", "+"])
    def test_names_refused(self, topic: str) -> None:
        assert topic_name_fault(topic) is not None

    @pytest.mark.parametrize("topic_filter", rows_of("mqtt.topic_filters"))
    def test_filters(self, topic_filter: str) -> None:
        assert topic_filter_fault(topic_filter, 5) is None

    @pytest.mark.parametrize("topic_filter", ["", "a#", "#/a", "a/#/b", "a+", "+a/b", "a/b+", "##"])
    @pytest.mark.parametrize("version", [4, 5])
    def test_filters_refused(self, topic_filter: str, version: int) -> None:
        assert topic_filter_fault(topic_filter, version) is not None

    @pytest.mark.parametrize(
        "topic_filter", ["$share/", "$share//a", "$share/g", "$share/g/", "$share/+/a"]
    )
    def test_shared_refused_in_mqtt_5(self, topic_filter: str) -> None:
        assert topic_filter_fault(topic_filter, 5) is not None

    def test_share_is_an_ordinary_level_in_mqtt_3_1_1(self) -> None:
        assert topic_filter_fault("$share/g", 4) is None
