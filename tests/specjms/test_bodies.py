"""Bodies are content of their type, of exactly the requested size."""

import struct
from xml.etree import ElementTree

import pytest

from loadgen.kernels.payload import HEADER_BYTES
from loadgen.specjms.bodies import body_of
from loadgen.specjms.kernels.trailer import TRAILER_BYTES
from loadgen.specjms.messages import MESSAGES, TYPES, message_sizes, number_of
from tests.specjms.test_messages import ARTICLE

BODIES = ARTICLE["bodies"]


def small(name: str) -> bytes:
    size = message_sizes()[number_of(name)][0]
    return body_of(number_of(name), size - HEADER_BYTES - TRAILER_BYTES)


def test_types_of_bodies_are_those_of_the_article() -> None:
    assert {message.name: message.body for message in MESSAGES} == {
        name: kind for kind, names in BODIES.items() for name in names
    }


def test_every_size_is_met_exactly() -> None:
    for number, sizes in enumerate(message_sizes()):
        for size in (0, 1, 17, 60, 200, 1_000, *(one - 72 for one in sizes), 250_000):
            assert len(body_of(number, size)) == size, (TYPES[number], size)


@pytest.mark.parametrize("name", BODIES["XML"])
def test_xml_is_well_formed_and_has_lines(name: str) -> None:
    root = ElementTree.fromstring(small(name))
    assert root.tag == name
    lines = root.findall("PurchaseLine")
    assert len(lines) >= 5
    assert len({line.get("product") for line in lines}) == len(lines)


@pytest.mark.parametrize("name", BODIES["stream"])
def test_a_stream_is_values_with_their_kinds(name: str) -> None:
    values = read_values(small(name))
    assert values[0] == name
    assert isinstance(values[1], int) and values[1] >= 3
    assert set(str(values[-1])) <= {"x"}


def test_a_map_has_names_and_values() -> None:
    data = small("priceUpdate")
    (count,) = struct.unpack_from(">i", data)
    at, found = 4, {}
    for _ in range(count):
        key, at = read_string(data, at)
        found[key], at = read_value(data, at)
    assert at == len(data)
    assert found["type"] == "priceUpdate" and found["product00001"] == "P0000001"


def test_text_is_readings_of_tags() -> None:
    first, *lines, last = small("shipDep").decode().split("\n")
    assert first == "shipDep: Reading"
    assert all(line.startswith("urn:epc:id:sgtin:") for line in lines) and len(lines) >= 5
    assert last.startswith("remark: ")


@pytest.mark.parametrize("name", BODIES["object"])
def test_an_object_is_a_stream_of_java_objects(name: str) -> None:
    data = small(name)
    assert data[:5] == b"\xac\xed\x00\x05s"
    assert f"specjms.{name[0].upper()}{name[1:]}".encode() in data
    line = MESSAGES[number_of(name)].line
    # One description of the line's class; every other line refers to it by its handle.
    assert data.count(b"r" + string(f"specjms.{line}")) == 1
    array = b"\x02\x00\x00xp"
    (lines,) = struct.unpack_from(">i", data, data.index(array) + len(array))
    assert data.count(b"sq\x00~\x00\x06") == lines - 1 >= 5


def string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def read_string(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">H", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def read_value(data: bytes, at: int) -> tuple[object, int]:
    if data[at] == 9:
        return read_string(data, at + 1)
    (value,) = struct.unpack_from({6: ">q", 7: ">d"}[data[at]], data, at + 1)
    return value, at + 9


def read_values(data: bytes) -> list[object]:
    values: list[object] = []
    at = 0
    while at < len(data):
        value, at = read_value(data, at)
        values.append(value)
    return values
