"""What some tests need and not every host has."""

import pytest

from loadgen.brokers.mosquitto import find_mosquitto

needs_mosquitto = pytest.mark.skipif(
    find_mosquitto() is None, reason="the program mosquitto is not installed"
)
