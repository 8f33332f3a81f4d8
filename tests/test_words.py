"""The words of sources and documents: rules that a machine can hold.

`python -m tests.test_words loadgen/judge docs/codes.md` prints every finding there.
"""

import ast
import io
import itertools
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("docs/**/*.md", "README.md", "CONTRIBUTING.md", "SECURITY.md")
SOURCES = ("loadgen/**/*.py", "loadgen/**/*.j2", "loadgen/**/page.js")

PHRASES = re.compile(
    r"\b((?-i:None)\s+where|where\s+nobody|where\s+there\s+(?:is|are)|is\s+(?-i:none)|nobody"
    r"|of\s+(?:its|their)\s+own|beside|meanwhile|lest|therefrom"
    r"|(?<![.,\d])1\s(?:messages|workers|times|devices|hosts))\b",
    re.IGNORECASE,
)
OPENING = re.compile(r"(What|Whether|Who|How|By|So|Of)\b")
COUNTED = re.compile(r" (?!was\b|has\b|is\b|does\b)[a-z]{2,}s\b")  # what follows a number
VAGUE = re.compile(
    r"_*(found|one|own|what|told|said|given|known|kept|some|others|whole|apart|beside)_*"
)
VAGUE_LINES = 5  # a vague name must not live longer
VERBS = frozenset((ROOT / "tests" / "verbs.txt").read_text().split())  # add those that are missing


def docstring_findings(node: ast.AST, text: str) -> Iterator[str]:
    if opening := OPENING.match(text):
        yield f"docstring begins with {opening[1]}"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        word = re.split(r"\W", text, maxsplit=1)[0]
        if "property" not in decorators and word.lower() not in VERBS:
            yield f"docstring of a function begins with {word or text[:8]!r}, not with a verb"


def bound_names(node: ast.AST) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first line, last line) of all that the node binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name, node.lineno, node.lineno + VAGUE_LINES + 1
    if isinstance(node, ast.ClassDef | ast.Module):  # fields and constants
        for part in node.body:
            for target in part.targets if isinstance(part, ast.Assign) else [part]:
                if isinstance(name := getattr(target, "target", target), ast.Name):
                    yield name.id, part.lineno, part.lineno + VAGUE_LINES + 1
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        lines: dict[str, list[int]] = {}
        for inner in ast.walk(node):
            if isinstance(inner, ast.arg | ast.Name):
                name_of = inner.arg if isinstance(inner, ast.arg) else inner.id
                lines.setdefault(name_of, []).append(inner.lineno)
        yield from ((name, min(at), max(at)) for name, at in lines.items())


def counted_nouns(text: ast.JoinedStr) -> Iterator[str]:
    for number, after in itertools.pairwise(list(text.values)):
        if isinstance(number, ast.FormattedValue) and isinstance(after, ast.Constant):
            is_count = number.format_spec and ast.unparse(number.format_spec).endswith(",'")
            if is_count and (noun := COUNTED.match(str(after.value))):
                yield noun[0]


def source_findings(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from ((token.start[0], match[0]) for match in PHRASES.finditer(token.string))
    for node in ast.walk(ast.parse(source)):
        for name, first, last in bound_names(node):
            if VAGUE.fullmatch(name) and last - first > VAGUE_LINES:
                yield first, f"name {name}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for match in PHRASES.finditer(node.value):
                yield node.lineno + node.value.count("\n", 0, match.start()), match[0]
        if isinstance(node, ast.JoinedStr):
            for noun in counted_nouns(node):
                yield node.lineno, f"a number before{noun}: it may be 1"
        body = getattr(node, "body", None)
        parts: list[ast.AST] = body if isinstance(body, list) else []
        for part in parts:
            if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                owner = node if part is parts[0] else part  # else it describes a field
                if isinstance(text := part.value.value, str):
                    yield from ((part.lineno, words) for words in docstring_findings(owner, text))


def document_findings(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text()
    for match in PHRASES.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def findings(prefix: str = "") -> Iterator[tuple[str, int, str]]:
    for path in sorted(path for glob in (*SOURCES, *DOCUMENTS) for path in ROOT.glob(glob)):
        file = str(path.relative_to(ROOT))
        if file.startswith(prefix):
            find = source_findings if path.suffix == ".py" else document_findings
            for line, words in sorted(set(find(path))):
                yield file, line, " ".join(words.split())


def test_words() -> None:
    refused = [f"{file}:{line}: {words}" for file, line, words in findings()]
    assert not refused, "\n" + "\n".join(refused)


def test_pages_for_users_are_short() -> None:
    pages = [
        page
        for page in (ROOT / "docs").rglob("*.md")
        if not {"internals", "report", "examples"} & set(page.parts)
    ]
    assert sum(len(page.read_text().split()) for page in pages) <= 18_000
    assert len((ROOT / "README.md").read_text().split()) <= 900


if __name__ == "__main__":
    for prefix in sys.argv[1:] or [""]:
        for file, line, words in findings(prefix):
            print(f"{file}:{line}: {words}")
