"""Constructions that make people read twice, and where the texts of the project have them."""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import pages
from tests.support.markdown import ROOT

_START = r"(?:\A|(?<=[.!?:;|]\s)|(?<=\n\n)|(?<=\n[-*#] )|(?<=^# )|(?<=^## )|(?<=^### )|(?<=^- ))"
# What each is, and what to write instead.
CONSTRUCTIONS = {
    "a clause as the subject: name the thing or the person": re.compile(
        _START + r"(?:What|Who|Whatever|Whoever|Which)(?! is new\b)\b[^?.!]*(?:[.!;]|$)",
        re.MULTILINE,
    ),
    "'Of ...' before the subject: subject first": re.compile(
        _START + r"Of (?!course\b)[^.?!]{3,}", re.MULTILINE
    ),
    "so often, so many, so long: how often, that many": re.compile(
        r"\bso (?:often|many|long|much)\b(?! as\b)", re.IGNORECASE
    ),
    "'so' for 'in this way': such a, in this way": re.compile(
        r"\b(?:drawn|made|stored|kept|read|done|written|given|said|found|told|counted|chosen|sent|"
        r"used|opened|named|called|sorted|taken|asked|stays?|remains?) so\b"
        r"(?! (?:that|as|many|often|long|far)\b| \w+ (?:is|are|can|do|does)\b)"
    ),
    "goes by: is ordered by, depends on": re.compile(r"\b(?:go|goes|going|went|gone) by\b"),
    "tells whether: returns True if": re.compile(r"\b(?:tell|tells|told|says?) whether\b"),
    "have others leave: evicts others": re.compile(
        r"\b(?:have|has|having) (?:others|rows|steps|the oldest|tasks|episodes) leave\b"
    ),
    "anew: again": re.compile(r"\banew\b", re.IGNORECASE),
    "meanwhile: while, at the same time": re.compile(r"\bmeanwhile\b", re.IGNORECASE),
    "beside: next to, in addition to": re.compile(r"\bbesides?\b", re.IGNORECASE),
    "lies in: is in": re.compile(
        r"\b(?:lie|lies|lying|lay) (?:in|on|at|below|above|outside|inside|between)\b"
    ),
    "is had, is said, is asked for: name who does it": re.compile(
        r"\b(?:is|are|was|were|be|been) (?:had|said|asked for)\b"
    ),
    "nobody: no process, no user": re.compile(r"\b(?:nobody|somebody)\b", re.IGNORECASE),
    "by itself: alone, separately": re.compile(r"\bby (?:itself|themselves)\b"),
    "at once: immediately, at the same time": re.compile(r"\bat once\b", re.IGNORECASE),
    "X is no Y: is not a Y": re.compile(
        r"(?<![Tt]here )\b(?:is|are|was|were) no\b"
        r"(?! (?:longer|more|less|fewer|faster|slower|later))"
    ),
    "whoever, whatever: name it": re.compile(r"\b(?:whoever|whatever)\b", re.IGNORECASE),
    "stored as nothing: is not stored": re.compile(r"\bas nothing\b"),
}


@dataclass(frozen=True)
class Finding:
    """A construction, with where it is."""

    place: str
    line: int
    construction: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.text!r}: {self.construction}"


@dataclass(frozen=True)
class Prose:
    """A text of the project without its code.

    Attributes:
        place: The file.
        line: Where it begins.
        text: What people read.
    """

    place: str
    line: int
    text: str

    @property
    def n_words(self) -> int:
        return len(re.findall(r"[A-Za-z][\w'-]*", self.text))

    def findings(self) -> Iterator[Finding]:
        for construction, pattern in CONSTRUCTIONS.items():
            for match in pattern.finditer(self.text):
                line = self.line + self.text.count("\n", 0, match.start())
                shown = " ".join(match[0].split())[:70]
                yield Finding(self.place, line, construction, shown)


def _blank(match: re.Match[str]) -> str:
    """Return as many lines without a word."""
    return "\n" * match[0].count("\n")


def without_code(text: str) -> str:
    """Return Markdown without code, targets of links and quotations of this list."""
    text = re.sub(r"^(`{3,}|~{3,}).*?^\1", _blank, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", _blank, text, flags=re.DOTALL)
    text = re.sub(r"``.+?``|`[^`]*`", "X", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def of_page(path: Path, place: str) -> Prose:
    """Return the prose of a Markdown page."""
    return Prose(place, 1, without_code(path.read_text(encoding="utf-8")))


def of_docstrings(path: Path, place: str) -> Iterator[Prose]:
    """Yield the docstrings of a module, without their examples."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                text = re.sub(r"^ *>>> .*?(?:\n\s*\n|\Z)", _blank, text, flags=re.M | re.S)
                text = re.sub(r"^\s*\w+(?: \([^)]*\))?: (?=[A-Z])", "\n\n", text, flags=re.M)
                first = node.body[0].lineno if node.body else 1
                yield Prose(place, first, without_code(text))


def of_comments(path: Path, place: str) -> Iterator[Prose]:
    """Yield the comments of a module."""
    text, start, last = [], 0, -1
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1 and text:
            yield Prose(place, start, without_code("\n".join(text)))
            text = []
        if not text:
            start = token.start[0]
        last = token.start[0]
        text.append(token.string.lstrip("# "))
    if text:
        yield Prose(place, start, without_code("\n".join(text)))


def of_line_comments(path: Path, place: str, mark: str) -> Iterator[Prose]:
    """Yield the comments of a file that is not Python; those on consecutive lines are one text.

    Args:
        path: The file.
        place: The file, from the top of the tree.
        mark: The characters that begin a comment.
    """
    text: list[str] = []
    lines = [*path.read_text(encoding="utf-8").splitlines(), ""]
    for number, line in enumerate(lines, 1):
        comment = re.search(rf"^(?:[^']|'[^']*')*?(?<!\S){mark}+( .*|$)", line)
        continues = comment and not line[: comment.start(1)].strip(f"{mark} ")
        if text and not continues:
            yield Prose(place, number - len(text), without_code("\n".join(text)))
            text = []
        if comment:
            text.append(comment[1].strip())


def of_summaries(path: Path, place: str) -> Iterator[Prose]:
    """Yield what alerts say."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if summary := re.match(r" *summary: \"?(.*?)\"?$", line):
            yield Prose(place, number, without_code(summary[1]))


def of_template(path: Path, place: str) -> Prose:
    """Return the text of a page in the browser, without its tags and what is filled in."""
    text = re.sub(r"\{#.*?#\}|<(script|style|code|pre)\b.*?</\1>", _blank, path.read_text("utf-8"))
    text = re.sub(r"\{\{.*?\}\}", "X", text, flags=re.DOTALL)
    text = re.sub(r"\{%.*?%\}", _blank, text, flags=re.DOTALL)
    words = r"\b(?:title|alt|aria-label|placeholder)=\"([^\"]*)\""
    text = re.sub(rf"<[^>]*?{words}[^>]*>", r"\n\n\1\n\n", text)
    text = re.sub(r"</?(?:a|b|em|strong|span|time)\b[^>]*>", "", text)
    return Prose(place, 1, re.sub(r"<[^>]*>", "\n\n", text))


def of_messages(path: Path, place: str) -> Iterator[Prose]:
    """Yield the other strings of a module that have a space: messages, and help of commands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_sql = re.search(r"\b[A-Z]{4,} |^\s*\(", node.value)
            if " " in node.value.strip() and id(node) not in docstrings and not is_sql:
                yield Prose(place, node.lineno, without_code(node.value))


def proses() -> dict[str, list[Prose]]:
    """Return the docs, the docstrings, the comments and the messages of the project.

    The messages include the help of commands, the texts of the web page, and alerts.
    """
    docs = [of_page(ROOT / page, page) for page in [*pages(), "CHANGELOG.md"]]
    found: dict[str, list[Prose]] = {"docs": docs, "docstrings": [], "comments": [], "messages": []}
    for path, place in _files("sqlbuffer", "alembic", "deploy", "docs/examples", suffix=".py"):
        found["docstrings"] += of_docstrings(path, place)
        found["comments"] += of_comments(path, place)
        if not place.startswith("alembic/"):
            found["messages"] += of_messages(path, place)
    found["comments"] += _other_comments()
    for path, place in _files("deploy", suffix="alerts.yml"):
        found["messages"] += of_summaries(path, place)
    for path, place in _files("sqlbuffer/web/templates", suffix=".html"):
        found["messages"].append(of_template(path, place))
    return found


def _other_comments() -> Iterator[Prose]:
    """Yield the comments of files that are not Python."""
    for path, place in _files("sqlbuffer", "alembic", "deploy", suffix=".sql"):
        yield from of_line_comments(path, place, "--")
    for path, place in [(ROOT / "Makefile", "Makefile"), *_files("deploy")]:
        if path.suffix not in (".py", ".sql"):
            yield from of_line_comments(path, place, ";" if path.suffix == ".ini" else "#")
    for path, place in _files("sqlbuffer/web/static", suffix=".js"):
        if not place.endswith(".min.js"):
            yield from of_line_comments(path, place, "//")


def _files(*folders: str, suffix: str = "") -> Iterator[tuple[Path, str]]:
    """Yield the files below some folders whose names end in some way."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob(f"*{suffix}")):
            if path.is_file() and path.suffix != ".pyc":
                yield path, path.relative_to(ROOT).as_posix()


def main(paths: list[str]) -> None:
    """Print what is found in files whose names begin with one of some paths, and how much."""
    for kind, all_texts in proses().items():
        texts = [text for text in all_texts if not paths or text.place.startswith(tuple(paths))]
        n_words = sum(text.n_words for text in texts)
        findings = [finding for text in texts for finding in text.findings()]
        for finding in findings:
            print(finding)
        if n_words:
            rate = len(findings) * 10_000 / n_words
            print(f"{kind}: {len(findings)} in {n_words:,} words, {rate:.1f} per 10,000")


if __name__ == "__main__":
    main(sys.argv[1:])
