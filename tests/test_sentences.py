"""All sentences for users, once each: tests/golden/sentences.txt, made by this module.

`python -m tests.test_sentences` writes it; tests elsewhere assert codes and values.
"""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import loadgen
from loadgen.judge.codes import REASONS, REMARKS
from loadgen.report.codes import markdown
from loadgen.sentences import Sentences, Text, counted, fields_of, render

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "sentences.txt"


def tables() -> list[type[Sentences]]:
    for module in pkgutil.walk_packages(loadgen.__path__, "loadgen."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(Sentences.__subclasses__(), key=lambda table: (table.__module__, table.__name__))


def golden() -> str:
    lines = []
    for title, rows in (("reasons", REASONS), ("remarks", REMARKS)):
        lines += ["", f"# {title}"]
        lines += [f"{row.code}: {'|'.join(parts)}" for row in rows for parts in row.rules.values()]
    for table in tables():
        lines += ["", f"# {table.__module__}.{table.__name__}"]
        lines += [f"{sentence.name}: {'|'.join(sentence.parts)}" for sentence in table]
    return "\n".join(lines[1:]) + "\n"


def calls(tree: ast.AST) -> Iterator[tuple[str, str, set[str], int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            table, words = node.func.value, [keyword.arg for keyword in node.keywords]
            if isinstance(table, ast.Name) and None not in words:
                yield table.id, node.func.attr, {word for word in words if word}, node.lineno


def test_every_sentence_is_in_the_golden_file() -> None:
    assert GOLDEN.read_text() == golden(), "run `python -m tests.test_sentences`"


def test_every_sentence_stands_once() -> None:
    sentences = [sentence for table in tables() for sentence in table.__members__.values()]
    assert len(sentences) == len({sentence.parts for sentence in sentences})


def test_every_sentence_gets_its_values() -> None:
    fields = {
        (table.__name__, sentence.name): set().union(*map(fields_of, sentence.parts))
        for table in tables()
        for sentence in table
    }
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {table}.{code} needs {sorted(fields[table, code])}"
        for path in sorted((ROOT / "loadgen").rglob("*.py"))
        for table, code, values, line in calls(ast.parse(path.read_text()))
        if (table, code) in fields and values != fields[table, code]
    ]
    assert not wrong, "\n".join(wrong)


def test_codes_are_documented_by_their_table() -> None:
    page = ROOT / "docs" / "codes.md"
    assert page.read_text() == markdown(), "run `python -m loadgen.report.codes > docs/codes.md`"


def test_a_number_agrees_with_its_noun() -> None:
    assert [counted(count, "message") for count in (0, 1, 2000)] == [
        "0 messages",
        "1 message",
        "2,000 messages",
    ]
    template = ("{count:delivery was|deliveries were} lost",)
    assert render("LOST", template, {"count": 1}) == "1 delivery was lost"
    assert render("LOST", template, {"count": 2}) == "2 deliveries were lost"


def test_a_part_without_its_value_is_left_out() -> None:
    template = ("{count} failed", ", first {first}", ": {names}")
    text = render("FAILED", template, {"count": 0, "first": None, "names": ("a", "b")})
    assert text == "0 failed: a, b"
    assert isinstance(text, Text) and text.code == "FAILED" and text.values["count"] == 0


if __name__ == "__main__":
    GOLDEN.write_text(golden())
