"""The pages of the documentation, done block by block as their readers would.

A line `# -> text` in a Python block, and a line without `$` in a console block, is what is printed
there; `...` in it stands for anything. A Python block that begins with `# name.py` is a file. What
cannot run is fenced as `text`.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from sqlbuffer.cli import app
from tests.support import sql
from tests.support.markdown import ROOT

SERVER_URL = "postgresql://me@db.internal/replay"
SQLITE_URL = "sqlite:///replay.db"
_SHELL = re.compile(r"[|<>&;]")
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text and the line that it begins at."""

    language: str
    body: str
    line: int


@dataclass(frozen=True)
class Command:
    """A line behind a `$`, and the lines that it prints."""

    text: str
    printed: list[str]


@dataclass
class Reader:
    """Does what a page says, in the current folder.

    Attributes:
        document: The page, from the top of the tree.
        monkeypatch: Sets what the page exports.
        urls: What stands for the URLs of the page.
        programs: Where PostgreSQL's own programs are.
        not_run: Console lines that are there to be read.
        names: What the Python blocks defined.
        printed: What each command printed.
    """

    document: str
    monkeypatch: pytest.MonkeyPatch
    urls: Mapping[str, str]
    programs: Path | None = None
    not_run: frozenset[str] = frozenset()
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: dict[str, str] = field(default_factory=dict)

    def read(self) -> "Reader":
        """Do every block of the page in order."""
        for block in fenced_blocks(self.document):
            self.do(block)
        return self

    def do(self, block: Block) -> None:
        """Do one block; an error names its line."""
        if block.language == "python":
            self._run_python(block)
        elif block.language == "console":
            for command in commands(block.body):
                self._run_command(command)
        elif block.language == "sql":
            self._run_sql(block.body)

    def _run_python(self, block: Block) -> None:
        source = self._with_urls(block.body)
        if file := re.match(r"# (\w+\.py)\n", source):
            Path(file[1]).write_text(source, encoding="utf-8")
            self.monkeypatch.syspath_prepend(Path.cwd())
            return
        # As many empty lines before it as in the page, for tracebacks.
        code = compile("\n" * block.line + source, str(ROOT / self.document), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, self.names)
        expected = re.findall(r"# -> (.*)$", source, re.MULTILINE)
        if expected:
            place = f"{self.document}, line {block.line}"
            assert_printed(out.getvalue().splitlines(), expected, place)

    def _run_sql(self, statement: str) -> None:
        if re.sub(r"(--.*\n|\s)+", " ", statement).lstrip().startswith(("SELECT", "WITH")):
            found = sql.run(SQLITE_URL, statement)
            # `tests/storage/plans/test_questions.py` has something to find for these.
            assert found or self.document == "docs/reference/views.md", statement
        else:
            sql.run(SQLITE_URL, statement)

    def _run_command(self, command: Command) -> None:
        line = re.sub(r"\s+# .*$", "", command.text)
        words = shlex.split(line)
        if line in self.not_run or words[0] == "sqlite3":  # which has a test of its own
            return
        if words[0] in _LOOKED_AT:
            _LOOKED_AT[words[0]](words)
        elif words[0] == "export":
            name, value = words[1].split("=", 1)
            self.monkeypatch.setenv(name, self._with_urls(value))
        else:
            printed = self._output(line)
            self.printed[line] = printed
            if command.printed:
                assert_printed(printed.splitlines(), command.printed, f"{self.document}: {line}")

    def _output(self, line: str) -> str:
        line = self._with_urls(line, quote=True)
        if _SHELL.search(re.sub(r"'[^']*'|\"[^\"]*\"", "", line)) or not line.startswith(
            "sqlbuffer "
        ):
            return self._in_shell(line)
        arguments = shlex.split(line)[1:]
        if arguments[0] in ("demo", "ui"):  # their own tests run them
            check_options(arguments)
            return ""
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
        return result.output

    def _in_shell(self, line: str) -> str:
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            env={**os.environ, "PATH": self._path(), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
        return result.stdout

    def _path(self) -> str:
        """Return a search path with this `sqlbuffer`, this Python and PostgreSQL's programs."""
        folder = Path("programs").absolute()
        if not folder.exists():
            folder.mkdir()
            start = "from sqlbuffer.cli import app; app(prog_name='sqlbuffer')"
            for name, arguments in (("sqlbuffer", f' -c "{start}"'), ("python", "")):
                program = folder / name
                program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
                program.chmod(0o755)
        folders = [folder, *([self.programs] if self.programs else [])]
        return os.pathsep.join([*map(str, folders), os.environ["PATH"]])

    def _with_urls(self, text: str, *, quote: bool = False) -> str:
        for shown, real in self.urls.items():
            text = re.sub(rf"{re.escape(shown)}\b", lambda _, real=real: _quoted(real, quote), text)
        return text


def _quoted(url: str, quote: bool) -> str:
    return shlex.quote(url) if quote else url


def pages() -> list[str]:
    """Return the README and every page of `docs/`, from the top of the tree."""
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return ["README.md", *sorted(page for page in found if not page.startswith("docs/_build/"))]


def text_of(document: str) -> str:
    """Return a page."""
    return (ROOT / document).read_text(encoding="utf-8")


def fenced_blocks(document: str) -> list[Block]:
    """Return the blocks of a page in order."""
    text = text_of(document)
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start(2)))
        for found in _FENCE.finditer(text)
    ]


def commands(body: str) -> list[Command]:
    """Return the commands of a console block."""
    found: list[Command] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        elif line.strip():
            found[-1].printed.append(line)
    return found


def all_commands(document: str) -> Iterator[str]:
    """Yield every console line of a page, without its comment."""
    for block in fenced_blocks(document):
        if block.language == "console":
            for command in commands(block.body):
                yield re.sub(r"\s+# .*$", "", command.text)


def assert_printed(printed: list[str], expected: list[str], place: str) -> None:
    """Compare what was printed with what a page shows."""
    lines = [line.rstrip() for line in printed if line.strip()]
    shown = [line.rstrip() for line in expected]
    patterns = [".*".join(map(re.escape, line.split("..."))) for line in shown]
    matches = len(lines) == len(patterns) and all(map(re.fullmatch, patterns, lines))
    assert matches, "\n".join([f"{place} shows", *shown, "and there was printed", *lines])


def check_make(words: list[str]) -> None:
    """See that the Makefile has the target."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"\n{words[1]}:" in makefile, f"no target {words[1]} in the Makefile"


def check_pip(words: list[str]) -> None:
    """See that `pip install .`, with the extras it names, is what the project has."""
    assert words[:2] == ["pip", "install"]
    extras = re.fullmatch(r"\.(?:\[(.+)\])?", words[2])
    assert extras, f"pip installs the checkout, got {words[2]}"
    table = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("optional-dep")[2]
    for extra in filter(None, (extras[1] or "").split(",")):
        assert f"\n{extra} = [" in table, f"no extra {extra}"


def check_options(arguments: list[str]) -> None:
    """See that a command and its options are known; it is not run."""
    command: Any = get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    command.make_context("sqlbuffer", rest)


# Not run: they would install an environment.
_LOOKED_AT = {"make": check_make, "pip": check_pip}
