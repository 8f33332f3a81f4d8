"""The codes of the verdict, each with its rules and their sentences: the table codes.toml."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from loadgen.judge import own_delay, rules
from loadgen.judge.facts import RunFacts
from loadgen.sentences import Text, Values, read_table, render

_RULES: Mapping[str, Callable[..., Iterable[Values]]] = {**vars(rules), **vars(own_delay)}


@dataclass(frozen=True, slots=True)
class Code:
    """One code, with the templates of its rules by their names; texts for readers in Markdown."""

    code: str
    seen: str
    meaning: str
    next: str
    rules: Mapping[str, Sequence[str]]

    def sentences(self, facts: RunFacts) -> list[Text]:
        """Return the sentences of the first rule that finds something, one for each finding."""
        for name, template in self.rules.items():
            rule = _RULES[name]
            # The parameters of a rule are the parts of the facts that it judges.
            judged = {part: getattr(facts, part) for part in signature(rule).parameters}
            if findings := list(rule(**judged)):
                return [render(self.code, template, values) for values in findings]
        return []


def _codes(kind: str) -> tuple[Code, ...]:
    rows: Mapping[str, Mapping[str, Any]] = read_table("loadgen.judge", "codes.toml")[kind]
    return tuple(Code(**{"code": code, "rules": {}, **row}) for code, row in rows.items())


REASONS, REMARKS = _codes("reasons"), _codes("remarks")
CODES = tuple(row.code for row in REASONS)
"""Codes of reasons in the order in which they are shown: causes before their effects."""
