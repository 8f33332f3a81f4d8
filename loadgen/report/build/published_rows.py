"""The published rows next to ours, and the differences that prevent a comparison."""

from collections.abc import Iterator, Mapping
from typing import Any

from loadgen.cases.case import MEASURES
from loadgen.cases.registry import CASES
from loadgen.judge.published import PUBLISHED_SOURCE, Conditions, PublishedFigure, counterparts
from loadgen.plan.tables import DataTable, TableCell
from loadgen.report.build.rows import DATA, PUBLISHED_FIGURES, Facts, figures_of, table
from loadgen.report.build.sections import negotiated, stored_first
from loadgen.report.record import RunRecord
from loadgen.report.render.text import number
from loadgen.sentences import JUDGE_TEXT, REPORT_TEXT

_HIGH_WATER_MARK = "high_water_mark"
_NEAR = 0.95
_WORDS: Mapping[str, Mapping[str, str]] = DATA["published"]


def published_details(facts: Facts) -> dict[str, Any]:
    """Return `published` for scorecard.json, empty if no row of the case is published."""
    published = [
        {
            "row": facts.record.case.upper(),
            "measure": figure.measure,
            **{key: ours[key] for key in PUBLISHED_FIGURES},
            "published": {
                "name": figure.name,
                **{key: getattr(figure, key) for key in (*PUBLISHED_FIGURES, _HIGH_WATER_MARK)},
                "less_than": list(figure.bounds),
            },
            "relation": figure.relation,
            "comparable": not differences,
            "same_load": _same_load(figure, ours["value"]),
            "differences": list(differences),
        }
        for figure, ours, differences in _compared(facts)
    ]
    return {"published": published} if published else {}


def published_sections(facts: Facts) -> Iterator[DataTable]:
    """Yield a table of the case's published rows next to ours, if there are any."""
    compared = _compared(facts)
    if compared:
        rows = (line for of_figure in compared for line in _lines(of_figure, facts))
        relation = compared[0][0].relation
        yield table("published", rows, source=PUBLISHED_SOURCE, relation=relation)


_Compared = tuple[PublishedFigure, Mapping[str, float | None], tuple[str, ...]]
"""A published row, our figures, and the differences that prevent a comparison."""


def _compared(facts: Facts) -> list[_Compared]:
    """Return the published rows of the case; without differences, the figures compare."""
    record = facts.record
    if record.case not in CASES:
        return []
    ours = conditions_of(record)
    # A kill of the broker at 0 s counts; older runs have False for none.
    worse = [
        words
        for key, words in _WORDS["made_worse"].items()
        if (value := record.scenario.get(key)) is not None and value is not False
    ]
    judged = [] if record.valid else ["this run is not VALID"]
    published, chosen = CASES[record.case].published, record.scenario.get("published")
    compared: list[_Compared] = []
    for figure in counterparts(published, ours, chosen):
        differences = (*figure.conditions.differences(ours), *worse, *judged)
        compared.append((figure, figures_of(figure.measure, facts), differences))
    return compared


def conditions_of(record: RunRecord) -> Conditions:
    case = CASES.get(record.case)
    timed = [group for group in record.publishing if group.timed]
    pair = case is not None and case.timed_pair
    load = [group for group in record.publishing if group.timed != pair]
    publishing = timed[0] if timed else None
    producers = sum(group.count for group in load)
    rate = sum(group.rate or 0.0 for group in load)
    handshakes = tuple((version, cipher) for version, cipher, _ in negotiated(record)[0])
    # Only devices that do not publish may subscribe or not, as the scenario has it.
    scenario, subscribed = record.scenario, record.scenario.get("subscribe")
    protocol, qos = record.broker.get("protocol"), scenario.get("qos") if subscribed else None
    return Conditions(
        interface=None if protocol is None else str(protocol),
        qos=qos if publishing is None else publishing.qos,
        size_bytes=None if publishing is None else publishing.size_bytes,
        topics=load[0].topics if load else None,
        ratio=None if publishing is None else round(publishing.deliveries),
        pair_rate=publishing.rate if pair and publishing is not None else None,
        producers=producers,
        producer_rate=rate / producers if producers else None,
        devices=sum(group.count for group in record.groups),
        subscribed=subscribed,
        endpoints=len(record.urls) or None,
        timed_s=scenario.get("duration"),
        handshakes=handshakes or (None if record.secure else ()),
        access_control=record.broker.get("access_control") is not None,
        stored_first=stored_first(record),
    )


def _lines(compared: _Compared, facts: Facts) -> Iterator[tuple[TableCell, ...]]:
    figure, ours, differences = compared
    unit = MEASURES[figure.measure].unit
    comparable = of_load = f"no; {'; '.join(differences)}" if differences else "yes"
    if not differences and _same_load(figure, ours["value"]) is False:
        comparable = REPORT_TEXT.SMALLER_LOAD()
        difference = JUDGE_TEXT.DIFFERENCE(
            ours=f"{number(ours['value'])} {unit}", published=f"{number(figure.value)} {unit}"
        )
        of_load = f"no; {difference}"
    for key, title in {**PUBLISHED_FIGURES, _HIGH_WATER_MARK: ""}.items():
        value: float | None = getattr(figure, key)
        if value is None:
            continue
        published = f"<{value:,g}" if key in figure.bounds else value
        if key == _HIGH_WATER_MARK:
            mark = facts.card.counts.subscription_high_water_mark
            words = "high-water mark, messages"
            yield figure.name, words, published, mark, f"{of_load}; {REPORT_TEXT.UPPER_BOUND()}"
            continue
        column = "" if key == "value" else f" {title}"
        words = f"{figure.measure.replace('_', ' ')}{column}, {unit}"
        words = _WORDS["titles"].get(figure.measure, words)
        absent = _WORDS["absent"].get(figure.measure) if ours[key] is None else None
        yield figure.name, words, published, ours[key], absent or comparable


def _same_load(figure: PublishedFigure, ours: float | None) -> bool | None:
    """Return True if the run's load was as great; None for figures that are not a load."""
    if not MEASURES[figure.measure].load or figure.value is None:
        return None
    return ours is not None and ours >= _NEAR * figure.value
