import pytest

from loadgen.cases.registry import CASES
from loadgen.errors import ScenarioError
from loadgen.report.build.sweep_table import FIGURES
from loadgen.run.search.report_plan import (
    WINDOWS_S,
    ReportBroker,
    brokers_of_document,
    chosen_items,
    command_of,
    plan_document,
    report_items,
    report_plan,
    report_scenario,
    split_urls,
    sweep_of,
)
from tests.tables import rows_of

A = ReportBroker("A", ("mqtt://a",), ("mqtts://a",), {"fanin": "5"}, {"queue": "no share"})
B = ReportBroker("B", ("mqtt://u:secret@b",))
STARTED = ReportBroker("C", ("nats",))


def test_items_have_fields_and_figures_that_exist() -> None:
    items = {item.name: item for item in report_items()}
    # Every item can be planned for a broker that is started here.
    planned = report_plan([ReportBroker("A", ("mosquitto",))], {})
    assert {one.item.name for one in planned.measurements} == items.keys()
    for item in items.values():
        assert {*item.vary[:1], *item.fields} <= CASES[item.case].scenario.fields().keys()
        assert {row.figure for row in item.rows} <= FIGURES.keys() | {"limit"}
        assert item.best in ("", *FIGURES)
        assert item.rows or item.vary


def test_what_a_broker_lacks_is_left_out_with_its_reason() -> None:
    plan = report_plan([A, B], {}, only=["queue", "bridge"])
    assert [(one.item.name, one.broker) for one in plan.measurements] == [("queue", 2)]
    reasons = {(one.item.name, one.broker): one.reason for one in plan.left_out}
    assert reasons["queue", 1] == "no share"
    assert reasons["bridge", 2].startswith("--broker: 'mqtt://")


def test_encrypted_urls_are_rows_of_their_own() -> None:
    plan = report_plan([A, B], {"tls_ca": "ca.pem"}, only=["fanin", "fanin-by-size"])
    shown = {(one.title, one.broker, one.item.name): one for one in plan.measurements}
    assert shown.keys() == {
        ("FANIN", 1, "fanin"),
        ("FANIN", 2, "fanin"),
        ("FANIN.SEC", 1, "fanin"),
        ("FANIN", 1, "fanin-by-producers"),
        ("FANIN", 2, "fanin-by-producers"),
        ("FANIN", 1, "fanin-by-size"),
        ("FANIN", 2, "fanin-by-size"),
    }
    secured = report_scenario(plan, shown["FANIN.SEC", 1, "fanin"])
    assert (secured.broker, secured.tls_ca, secured.mqtt) == (("mqtts://a",), "ca.pem", "5")
    plain = report_scenario(plan, shown["FANIN", 2, "fanin"])
    assert (plain.broker, plain.tls_ca, plain.mqtt) == (("mqtt://u:secret@b",), None, "3.1.1")


def test_a_broker_that_is_started_here_has_no_options_of_tls() -> None:
    plan = report_plan([A, STARTED], {"tls_ca": "ca.pem"}, only=["connburst"])
    assert [report_scenario(plan, one).tls_ca for one in plan.measurements] == [
        None,
        None,
        "ca.pem",
    ]


def test_a_budget_sets_the_window_and_leaves_out_what_does_not_fit() -> None:
    whole = report_plan([B], {})
    hours = (0.2, 1, 5, 500)
    windows = [report_plan([B], {}, budget_s=each * 3600).window_s for each in hours]
    assert windows == sorted(windows)
    assert (windows[0], windows[-1]) == (WINDOWS_S[-1], WINDOWS_S[0])
    short = report_plan([B, B], {}, budget_s=300)
    assert 0 < len(short.measurements) < 2 * len(whole.measurements)
    assert short.seconds <= 300
    # All brokers or none.
    assert len(short.measurements) == 2 * len({one.item.name for one in short.measurements})
    fitting = {one.item.name for one in short.measurements}
    assert {one.item.name for one in short.left_out} & fitting == set()
    assert "fanin" in fitting and "fanout" not in fitting and "connburst" in fitting
    # `--quick` has each row of the score card.
    broker = ReportBroker("D", ("mosquitto",))
    quick = {one.item.name for one in report_plan([broker], {}, budget_s=540).measurements}
    assert {item.name for item in report_items() if item.rows} <= quick


def test_a_search_confirms_and_runs_repeat() -> None:
    plan = report_plan([B], {}, budget_s=36_000)
    by_name = {one.item.name: sweep_of(one, plan) for one in plan.measurements}
    assert by_name["connburst"].repeat == 3 and by_name["connburst"].search is None
    fanout = by_name["fanout"]
    assert fanout.axes == (("ratio", ("1", "10", "100", "1000")),)
    assert fanout.search is not None
    search = fanout.search(fanout.scenario)
    assert (search.aim.field, search.step_s) == ("rate", plan.window_s)
    latency = by_name["latency-by-background"].scenario
    assert latency.duration == 2 * plan.window_s


@pytest.mark.parametrize(("name", "command"), rows_of("run.repeated_alone"))
def test_a_measurement_can_be_repeated_alone(name: str, command: str) -> None:
    plan = report_plan([B], {}, only=[name])
    made = {one.item.name: command_of(one, plan) for one in plan.measurements}
    assert made[name] == command


def test_a_plan_is_read_back_without_its_passwords() -> None:
    plan = report_plan([A, B], {}, budget_s=900)
    document = plan_document(plan)
    assert "secret" not in str(document)
    urls = [(*A.urls, *A.secured), B.urls]
    found = brokers_of_document(document, urls, [{}, {}])
    assert report_plan(found, {}, budget_s=900) == plan


@pytest.mark.parametrize("name", ["fan", "FANIN", ""])
def test_an_unknown_item_is_refused(name: str) -> None:
    with pytest.raises(ScenarioError):
        chosen_items([name])


@pytest.mark.parametrize(("urls", "plain", "secured"), rows_of("run.broker_urls"))
def test_urls_of_a_broker(urls: list[str], plain: list[str], secured: list[str]) -> None:
    assert split_urls(urls) == (tuple(plain), tuple(secured))
