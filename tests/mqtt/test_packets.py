"""Packets as values (spec 3)."""

from dataclasses import FrozenInstanceError, fields

import pytest

from loadgen.mqtt.codec import _ENCODERS
from loadgen.mqtt.constants import AUTH, CONNECT, PACKET_NAMES
from loadgen.mqtt.packets import Connect, Publish


class TestPackets:
    """Spec 2.1.2."""

    def test_one_class_for_each_packet_type(self) -> None:
        by_type = {packet.packet_type: packet.__name__.upper() for packet in _ENCODERS}
        assert by_type == {t: PACKET_NAMES[t] for t in range(CONNECT, AUTH + 1)}

    def test_are_frozen_and_have_no_dict(self) -> None:
        packet = Publish("a")
        with pytest.raises(FrozenInstanceError):
            packet.qos = 1  # type: ignore[misc]
        for kind in _ENCODERS:
            assert "__slots__" in vars(kind)

    def test_password_is_not_shown(self) -> None:
        assert "hunter2" not in repr(Connect("c", user_name="u", password=b"hunter2"))
        assert "password" in {one.name for one in fields(Connect)}
