"""Data types of spec 1.5 and topics of spec 4.7."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import LocalProtocolError, RemoteProtocolError
from loadgen.mqtt import wire
from tests.mqtt.strategies import QUICK
from tests.tables import rows_of


def _reader(data: bytes) -> wire.Reader:
    return wire.Reader(data, "PACKET")


class TestIntegers:
    """Spec 1.5.2, 1.5.3 and 1.5.5."""

    @pytest.mark.parametrize(("value", "encoded"), rows_of("mqtt.variable_byte_integers"))
    def test_variable_byte_integer_of_table_1_1(self, value: int, encoded: str) -> None:
        data = bytes.fromhex(encoded)
        assert wire.write_variable(value, "x") == data
        assert _reader(data).variable("x") == value

    @pytest.mark.parametrize(
        "data", [b"\x80\x00", b"\xff\x80\x00", b"\x80\x80\x80\x80\x01", b"\x80"]
    )
    def test_variable_byte_integer_refused(self, data: bytes) -> None:
        with pytest.raises(RemoteProtocolError) as caught:
            _reader(data).variable("x")
        assert caught.value.reason_code == 0x81

    @pytest.mark.parametrize(
        ("write", "most"),
        [
            (wire.write_u8, 0xFF),
            (wire.write_u16, 0xFFFF),
            (wire.write_u32, 0xFFFF_FFFF),
            (wire.write_variable, 268_435_455),
        ],
    )
    def test_what_does_not_fit_is_our_fault(self, write, most) -> None:  # type: ignore[no-untyped-def]
        assert write(most, "x")
        for value in (-1, most + 1):
            with pytest.raises(LocalProtocolError):
                write(value, "x")


class TestStrings:
    """Spec 1.5.4 and 1.5.6."""

    @pytest.mark.parametrize("text", ["a\0b", "\ud800", "a\udfffb", "x" * 65_536, "é" * 32_768])
    def test_refused_from_us(self, text: str) -> None:
        with pytest.raises(LocalProtocolError):
            wire.write_utf8(text, "x")

    @pytest.mark.parametrize("text", rows_of("mqtt.text_refused"))
    def test_refused_from_the_peer(self, text: str) -> None:
        with pytest.raises(RemoteProtocolError) as caught:
            _reader(wire.write_binary(bytes.fromhex(text), "x")).utf8("x")
        assert caught.value.reason_code == 0x81

    def test_byte_order_mark_is_kept(self) -> None:
        assert _reader(b"\x00\x03\xef\xbb\xbf").utf8("x") == "\ufeff"

    def test_length_beyond_the_packet(self) -> None:
        with pytest.raises(RemoteProtocolError, check=lambda error: error.reason_code == 0x81):
            _reader(b"\x00\x05abcd").binary("x")

    def test_largest(self) -> None:
        assert _reader(wire.write_binary(b"z" * 65_535, "x")).binary("x") == b"z" * 65_535
        with pytest.raises(LocalProtocolError):
            wire.write_binary(b"z" * 65_536, "x")

    def test_trailing_bytes(self) -> None:
        with pytest.raises(RemoteProtocolError, check=lambda error: error.reason_code == 0x81):
            _reader(b"abc").finish()


class TestEscaped:
    """Text of a peer in a message for users."""

    @given(st.text(max_size=500))
    @QUICK
    def test_is_short_printable_ascii(self, text: str) -> None:
        shown = wire.escaped(text)
        assert shown.isascii()
        assert shown.isprintable()
        # Ten characters for each kept one at worst, and the count.
        assert len(shown) <= 80 * 10 + 40

    def test_bound_says_how_much_there_was(self) -> None:
        assert wire.escaped("x" * 81) == "'" + "x" * 80 + "'... (81 characters)"
