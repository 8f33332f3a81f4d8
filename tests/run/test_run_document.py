"""The run.json of a run before it begins."""

from dataclasses import replace

import pytest

from loadgen.brokers.endpoints import parse_endpoint
from loadgen.brokers.process import ServedBroker
from loadgen.cases.registry import build_scenario, resolve
from loadgen.run.run_document import _named
from tests.tables import rows_of

URL = "mqtt://127.0.0.1:1"


def named(version: str, **fields: str) -> dict[str, str]:
    workload = resolve(build_scenario("fanin", None, {"broker": URL, **fields}))
    return _named(workload, replace(ServedBroker.at((parse_endpoint(URL),)), version=version))


@pytest.mark.parametrize(("said", "name", "version"), rows_of("run.versions_said"))
def test_a_broker_is_named_as_it_says_itself(said: str, name: str, version: str) -> None:
    assert named(said) == {"name": name, "version": version}


@pytest.mark.parametrize(("given", "name", "version"), rows_of("run.versions_told"))
def test_what_the_user_says_counts(given: str, name: str, version: str) -> None:
    said = named("mosquitto version 2", broker_name=given, broker_note="with <plugins>")
    assert said == {"name": name, "version": version, "note": "with <plugins>"}
