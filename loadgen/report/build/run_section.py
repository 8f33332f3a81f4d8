"""The section of one run: counts, tables, latencies, power, broker, charts and how to repeat it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from loadgen.plan.reading import Object, figures
from loadgen.plan.tables import Cell, DataTable, TableCell
from loadgen.report.build.broker_section import RATES, BrokerLoad, NodeLoad
from loadgen.report.build.rows import DATA, table
from loadgen.report.model import Block, Charts, Fold, Judged, Paragraph, Section
from loadgen.report.render.text import COMMAND_CHARACTERS, name, number
from loadgen.report.score_card import LATENCY_FIGURES, Power, ScoreCard
from loadgen.sentences import REPORT_TEXT, counted, percent

_WRONG_ABOVE_ZERO = ("lost", "duplicated", "out_of_order", "corrupt", "connect_failures")
_GROUP_COUNTERS = ("sent", "expected", "received", "duplicated", "out_of_order")
_BROKER_COUNTS = {"publish_received": "PUBLISH received", "publish_sent": "PUBLISH sent"}
_MIB = 1 << 20
_MOST_TROUBLES = 3


def run_section(
    card: ScoreCard, place: int, charts: Charts, *, several: bool, folded: bool
) -> Section:
    """Return the section of one run; a report of one has its first chart and reasons before it."""
    run, title = card.run, name(card.run.case.upper())
    about = (
        f"{run.broker_name or 'broker'} · {run.protocol} · started {run.started} · "
        f"{number(run.seconds)} s measured · {counted(run.workers, 'worker')} on "
        f"{counted(run.hosts, 'host')} · run {run.id}"
    )
    reasons = tuple((reason.code, reason.detail) for reason in card.verdict.reasons)
    remarks = tuple(remark.detail for remark in card.verdict.remarks)
    command = shlex.join(run.command)
    blocks: list[Block] = [
        Paragraph(about, "muted"),
        *([Judged("", reasons, remarks)] if several else []),
        _tiles(asdict(card.counts)),
        *card.sections,
        *latency_tables(card),
        *_connecting(card),
        *(_power(card.power) if card.power is not None else ()),
        *(_broker(card.broker) if card.broker is not None else ()),
        charts,
        *_groups(card),
        *_hosts(card.details.get("load_hosts", ())),
        Paragraph("Command:" if command else "The run did not record its command.", "muted"),
        *([Paragraph(name(command, COMMAND_CHARACTERS), "command")] if command else []),
        _seal(card),
        Fold("Scenario, environment and broker", (_facts(card),)),
    ]
    return Section(
        " · ".join([title, f"run {place + 1}", run.id][: 3 if folded else 1 + several]),
        tuple(blocks),
        anchor=f"run-{place + 1}",
        verdict=card.verdict.word,
        folded=folded,
    )


def _tiles(figures: Mapping[str, float | None]) -> DataTable:
    rows = tuple(
        (label.replace("_", " "), Cell(value, wrong=bool(label in _WRONG_ABOVE_ZERO and value)))
        for label, value in figures.items()
    )
    return table("tiles", rows)


def _measured_tiles(figures: Mapping[str, float | None]) -> Iterator[DataTable]:
    measured = {label: value for label, value in figures.items() if value is not None}
    if measured:
        yield _tiles(measured)


def latency_tables(card: ScoreCard) -> Iterator[DataTable]:
    """Yield the table of the latency series if there are any."""
    series = tuple(
        (name, *(timed.figure(key) for key in LATENCY_FIGURES))
        for name, timed in card.latency.items()
    )
    if series:
        yield table("latency", series, own="own_delay" if "own_delay" in card.latency else "")


def _connecting(card: ScoreCard) -> Iterator[DataTable]:
    rows = [(f"Failed: {reason}", n) for reason, n in card.connect.failures.items()]
    for counter, count in card.network.items():
        if count:
            rows.append((f"This host's {counter.replace('_', ' ')} over the run", count))
    if rows:
        connected = ("Connected", card.connect.connected)
        yield table("connecting", (connected, *rows))


def _power(power: Power) -> Iterator[Block]:
    rows: list[tuple[Cell | TableCell, ...]] = []
    for outlet in power.outlets:
        energy = Cell("no counter")
        if check := outlet.energy:
            watts_kwh = "" if check.watts_kwh is None else f"{number(check.watts_kwh)}, "
            energy = Cell(
                f"{watts_kwh}{number(check.counter_kwh)}: {check.result}",
                notes=(f"counted in steps of {number(check.resolution_kwh)}",),
                wrong=bool(outlet.withheld),
            )
        figures = (f"{outlet.watts:,.1f}", outlet.inside, percent(outlet.coverage))
        rows.append((outlet.node, outlet.name, *figures, energy))
    nodes = power.nodes if len(power.nodes) > 1 else ()
    for node, outlets, watts in (
        *((node.name or "no node", counted(node.outlets, "outlet"), node.watts) for node in nodes),
        ("All", "", power.watts),
    ):
        rows.append((node, outlets, f"{watts:,.1f}", None, None, None))
    yield table("power", rows)
    if power.remark:
        yield Paragraph(power.remark, "remark")
    tiles = {
        "messages per watt": power.messages_per_watt,
        "joules a message": power.joules_per_message,
        "watts per rack unit": power.watts_per_rack_unit,
    }
    yield from _measured_tiles(tiles)


def _broker(load: BrokerLoad) -> Iterator[Block]:
    tiles = {
        "broker's processor time, s": load.cpu_seconds,
        "messages a core-second": load.messages_per_core_second,
        "dropped, by its own count": load.dropped,
    }
    yield from _measured_tiles(tiles)
    if load.nodes:
        yield table("nodes", map(node_figures, load.nodes))
    rows = []
    for check in load.counts:
        times = (f"{check.broker / check.ours:.3f} times ours",) if check.ours else ()
        result = Cell("agrees") if check.agrees else Cell("differs", notes=times, wrong=True)
        count = _BROKER_COUNTS.get(check.count, check.count)
        rows.append((count, check.topic, check.broker, check.ours, check.uncertain, result))
    if rows:
        yield table("broker_counts", rows)
    for trouble in load.troubles[:_MOST_TROUBLES]:
        yield Paragraph(trouble, "muted")


def node_figures(node: NodeLoad) -> tuple[TableCell, ...]:
    memory = node.resident_bytes_max
    return (
        node.node or "broker's processes",
        node.cores,
        node.processors or None,
        memory / _MIB if memory else None,
        *(node.rates[key] / 1e6 if key in node.rates else None for key in RATES),
    )


def _groups(card: ScoreCard) -> Iterator[DataTable]:
    if any(any(group.counters.values()) for group in card.groups):
        rows = (
            (group.planned.name, group.planned.count, *map(group.counters.get, _GROUP_COUNTERS))
            for group in card.groups
        )
        yield table("groups", rows)


def _hosts(hosts: Sequence[Object]) -> Iterator[Block]:
    """Yield a row for each of several load hosts, and all that is known of each to open."""
    titles = {f"{name(one.get('host'))} ({name(one.get('name'))})": one for one in hosts[:50]}
    keys = DATA["tables"]["hosts"]["keys"]
    if hosts:
        yield table("hosts", [(title, *figures(titles[title], *keys)) for title in titles])
    for title, host in titles.items():
        yield Fold(f"Host {title}", (table("facts", flat("host", host)),))


def flat(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield every value of nested ones with its path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(f"{prefix}.{key}", item)
    elif isinstance(value, (list, tuple)):
        yield prefix, ", ".join(map(str, value))
    elif value is not None:
        yield prefix, str(value)


def _seal(card: ScoreCard) -> Paragraph:
    integrity = card.integrity
    if integrity.state == "intact":
        digests = {key: integrity.digests.get(key) for key in ("results", "scenario")}
        return Paragraph(REPORT_TEXT.SEAL_INTACT(**digests), "muted")
    if integrity.state == "changed":
        return Paragraph(REPORT_TEXT.SEAL_CHANGED(changes="; ".join(integrity.changes)), "wrong")
    is_running = card.verdict.word == "RUNNING"
    missing = REPORT_TEXT.SEAL_LATER if is_running else REPORT_TEXT.SEAL_MISSING
    return Paragraph(missing(), "muted")


def _facts(card: ScoreCard) -> DataTable:
    run = card.run
    rows = (
        ("run", run.id),
        *((f"{key} SHA-256", value) for key, value in card.integrity.digests.items()),
        ("program", run.program),
        ("seed", "" if run.seed is None else str(run.seed)),
        *flat("scenario", run.scenario),
        *flat("broker", run.broker),
        *flat("environment", run.environment),
    )
    return table("facts", rows)
