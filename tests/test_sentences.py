"""All sentences for users, once each, in a file that `python -m tests.test_sentences` writes."""

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

from bench.codes_page import markdown
from loadgen import errors, sentences
from loadgen.judge.codes import REASONS, REMARKS
from loadgen.sentences import Sentences, Text, counted, fields_of, render, templates
from loadgen.specjms import build_model

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "sentences.txt"
TABLES = {
    name: templates(table.package)
    for name, table in (vars(sentences) | vars(build_model)).items()
    if isinstance(table, Sentences)
}


PLAIN = {
    # The kernel passes packets that are complete.
    "worker/lifecycle.py: CannotRunError('a packet ended before its length')",
    # The lifecycle calls it for groups that subscribe.
    "worker/messaging.py: CannotRunError(f'group {group.name} has nothing to subscribe to')",
}
"""Errors that no user can cause."""


def golden() -> str:
    sections = {
        title: [(row.code, parts) for row in rows for parts in row.rules.values()]
        for title, rows in (("reasons", REASONS), ("remarks", REMARKS))
    } | {name: [*table.items()] for name, table in TABLES.items()}
    return "\n".join(
        f"# {title}\n" + "".join(f"{code}: {'|'.join(parts)}\n" for code, parts in rows)
        for title, rows in sections.items()
    )


def uses() -> Iterator[tuple[str, str, str, set[str | None] | None]]:
    """Yield each use of a sentence: its place, table and code, and the values that are passed."""
    for path in sorted((ROOT / "loadgen").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else node
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                names = {word.arg for word in node.keywords} if isinstance(node, ast.Call) else None
                if called.value.id in TABLES and called.attr.isupper():
                    yield f"{path.name}:{called.lineno}", called.value.id, called.attr, names


def has_words(node: ast.AST, names: set[str]) -> bool:
    """Return True if an expression has text from code, other than as a value of a sentence."""
    if isinstance(node, ast.Call | ast.Name):
        return ast.unparse(node.func if isinstance(node, ast.Call) else node) in names
    if isinstance(node, ast.Constant):
        return isinstance(node.value or 0, str)
    return any(has_words(part, names) for part in ast.iter_child_nodes(node))


def plain_errors() -> Iterator[str]:
    """Yield each error for users that is made of text from code: its file and source."""
    # Errors of MQTT are values of other sentences.
    kinds = {name for name in vars(errors) if name.endswith("Error") and "Protocol" not in name}
    package = ROOT / "loadgen"
    trees = {path: [*ast.walk(ast.parse(path.read_text()))] for path in package.rglob("*.py")}
    for node in itertools.chain(*trees.values()):
        if isinstance(node, ast.ClassDef) and not hasattr(errors, node.name):
            kinds |= {node.name} if kinds & {*map(ast.unparse, node.bases)} else set()
    for path, nodes in trees.items():
        texts = set[str]()
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                targets: list[ast.expr] = (
                    node.targets if isinstance(node, ast.Assign) else [node.target]
                )
                texts |= {*map(ast.unparse, targets)} if has_words(node.value, set()) else set()
            if isinstance(node, ast.FunctionDef):
                ends = (part for part in ast.walk(node) if isinstance(part, ast.Return | ast.Yield))
                if any(has_words(end, set()) for end in ends):
                    texts.add(node.name)
                    if node.name == "complaints":
                        yield f"{path.relative_to(package)}: complaints"
        for node in nodes:
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).split(".")[-1] in kinds
                and any(has_words(part, texts) for part in node.args)
            ):
                yield f"{path.relative_to(package)}: {ast.unparse(node)}"


def test_errors_for_users_are_sentences() -> None:
    assert {*plain_errors()} == PLAIN
    assert len(PLAIN) <= 5


def test_every_sentence_is_in_the_golden_file() -> None:
    assert GOLDEN.read_text() == golden(), "run `python -m tests.test_sentences`"


def test_every_sentence_stands_once() -> None:
    every = [tuple(parts) for table in TABLES.values() for parts in table.values()]
    assert len(every) == len({*every})


def test_every_sentence_exists_and_is_used() -> None:
    used = {(table, code): place for place, table, code, _ in uses()}
    every = {(table, code) for table, rows in TABLES.items() for code in rows}
    assert {name: place for name, place in used.items() if name not in every} == {}
    assert every - used.keys() == set()


def test_every_sentence_gets_its_values() -> None:
    wrong = []
    for place, table, code, names in uses():
        fields = set[str | None]().union(*map(fields_of, TABLES[table].get(code, ())))
        if names is not None and None not in names and names != fields:
            wrong.append(f"{place}: {table}.{code} needs {sorted(map(str, fields))}")
    assert not wrong, "\n".join(wrong)


def test_codes_are_documented_by_their_table() -> None:
    page = ROOT / "docs" / "codes.md"
    assert page.read_text() == markdown(), "run `python -m bench.codes_page > docs/codes.md`"


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
