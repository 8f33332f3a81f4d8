"""The codes of the verdict, each with its rules and their sentences: the table codes.toml."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from operator import attrgetter
from typing import Any

from loadgen.judge import own_delay, rules
from loadgen.judge.facts import RunFacts
from loadgen.sentences import Text, Values, read_table, render

_RULES: Mapping[str, Callable[..., Iterable[Values]]] = {**vars(rules), **vars(own_delay)}


@dataclass(frozen=True, slots=True)
class Code:
    """One code: its texts for readers in Markdown, and the templates of its rules by name."""

    code: str
    seen: str
    meaning: str
    next: str
    rules: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # Rules that only look up facts: values of the sentence, found if all in `if` are true.
    finds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def sentences(self, facts: RunFacts) -> list[Text]:
        """Return the sentences of the first rule that finds something."""
        for name, template in self.rules.items():
            if findings := [*self.findings(name, facts)]:
                return [render(self.code, template, values) for values in findings]
        return []

    def findings(self, name: str, facts: RunFacts) -> Iterable[Values]:
        if name in self.finds:
            paths = {"if": [*self.finds[name].values()][:1], **self.finds[name]}
            holds = all(attrgetter(path)(facts) for path in paths.pop("if"))
            return [{key: attrgetter(path)(facts) for key, path in paths.items()}] * holds
        rule = _RULES[name]
        # The parameters of a rule are the parts of the facts that it judges.
        return rule(**{part: getattr(facts, part) for part in signature(rule).parameters})


def _codes(kind: str) -> tuple[Code, ...]:
    rows: Mapping[str, Mapping[str, Any]] = read_table("loadgen.judge", "codes.toml")[kind]
    return tuple(Code(code, **row) for code, row in rows.items())


REASONS, REMARKS = _codes("reasons"), _codes("remarks")
CODES = tuple(row.code for row in REASONS)  # codes of reasons, causes before their effects
