"""Write docs/reference/cli.md from the commands themselves: `python -m tests.docs.cli_page`."""

import inspect
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from sqlbuffer.cli import app
from sqlbuffer.cli.errors import EXIT_CODES, INTERRUPTED, PIPE_CLOSED
from tests.support.markdown import ROOT

PAGE = "docs/reference/cli.md"
INTRO = """# Command line

`sqlbuffer COMMAND --help` prints the same, as does `python -m sqlbuffer COMMAND --help`.

A URL is `sqlite:///FILE`, the path of a SQLite file, or `postgresql://USER@HOST/DATABASE`. A
command without a URL uses `SQLBUFFER_URL`, or `sqlite:///sqlbuffer.db` if that is not set.

`sqlbuffer --version` prints the version. `--install-completion` sets up completion in your shell.
"""
EXIT_INTRO = """## Exit codes

Errors are one line on standard error. The next line names the command that prints their
[entry](errors.md).
"""
MEANINGS = {
    0: "The command succeeded.",
    1: "The command failed.",
    2: "The command line, a setting, a condition or a value is wrong.",
    3: "The database, the buffer or the task is missing, or the server does not answer.",
    4: "The schema is missing or does not fit: run `sqlbuffer db init` or `sqlbuffer db upgrade`.",
    5: "The database stayed locked for the whole timeout.",
    INTERRUPTED: "Ctrl-C ended the command.",
    PIPE_CLOSED: "The reader of the output, such as `head`, has left.",
}
# Commands that have an option alike for it to be explained once.
SHARED_BY = 2
KINDS = {int: "INTEGER", float: "NUMBER", str: "TEXT"}


def page() -> str:
    """Return the page."""
    shared = _shared()
    sections = [_section(command, shared) for command in commands()]
    common = "\n".join(["## Shared options", "", *map(_line, shared), ""])
    return "\n".join([INTRO, common, *sections, EXIT_INTRO, "\n".join(_exit_codes()) + "\n"])


def _shared() -> list[tuple[str, str, str]]:
    """Return the arguments and options that several commands have alike."""
    counts = Counter(_row(own) for _, command in commands() for own in command.params)
    return [row for row, n in counts.items() if n >= SHARED_BY]


def commands() -> list[tuple[str, Any]]:
    """Return the commands by what a user types, in the order of the help."""
    return list(_commands("sqlbuffer", get_command(app)))


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for word, own in inner.items():
        yield from _commands(f"{name} {word}", own)


def _section(entry: tuple[str, Any], shared: Collection[tuple[str, str, str]]) -> str:
    name, command = entry
    text = inspect.cleandoc(command.help)
    lines, usage = [f"## {name}", "", _marked(text), ""], _usage(name)
    if usage not in (f"{name} [OPTIONS]", f"{name} [OPTIONS] [URL]"):
        lines += [f"Usage: `{usage}`", ""]
    rows = [_row(own) for own in command.params]
    if own := [_line(row) for row in rows if row not in shared]:
        lines += [*own, ""]
    common = [row[0].split(" ")[0].rstrip(",") for row in rows if row in shared]
    if common := [option for option in common if option.startswith("`-")]:
        lines += [f"Shared: {', '.join(common)}.", ""]
    examples = [line.strip() for line in (command.epilog or "").splitlines()[2:]]
    if examples:
        lines += ["```console", *(f"$ {line}" for line in examples), "```", ""]
    return "\n".join(lines)


def _line(row: tuple[str, str, str]) -> str:
    name, default, what = row
    return f"- {name}{f' ({default})' if default else ''}: {what}"


def _usage(name: str) -> str:
    words = name.split()[1:]
    printed = CliRunner().invoke(app, [*words, "--help"], prog_name="sqlbuffer").output
    usage = printed.partition("Usage: ")[2].partition("\n\n")[0]
    return " ".join(usage.split()).replace("{", "").replace("}", "")


def _row(parameter: Any) -> tuple[str, str, str]:
    word = _metavar(parameter)
    if parameter.param_type_name == "argument":
        return f"`{_cell(word)}`", _default(parameter), _marked(parameter.help)
    names = ", ".join(f"`{name}`" for name in sorted(parameter.opts, key=len, reverse=True))
    given = "" if parameter.is_flag else f" `{_cell(word)}`"
    return f"{names}{given}", _default(parameter), _cell(_marked(parameter.help))


def _metavar(parameter: Any) -> str:
    if parameter.metavar:
        return str(parameter.metavar)
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    default = parameter.default
    if parameter.name == "dialect":
        return "sqlite|postgresql"
    return KINDS.get(type(default), "INTEGER" if parameter.name == "seed" else "TEXT")


def _default(parameter: Any) -> str:
    default = parameter.default
    is_shown = (isinstance(default, str | float) and default != "") or (
        isinstance(default, int) and not isinstance(default, bool)
    )
    return f"`{default}`" if is_shown else ""


def _marked(text: str) -> str:
    """Return a help text with its options marked as code."""
    text = re.sub(r"(?<![`\w-])(--?[a-z][\w-]*)(?![\w`])", r"`\1`", text)
    return re.sub(r"(?<![`\w])('\{.*?\}')", r"`\1`", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _exit_codes() -> Iterator[str]:
    rows = []
    for code, meaning in MEANINGS.items():
        errors = [
            f"[`{kind.__name__}`](errors.md#{kind.__name__.lower()})"
            for kind, own in EXIT_CODES
            if own == code and kind.__module__ == "sqlbuffer.errors"
        ]
        rows.append((str(code), meaning, ", ".join(errors)))
    return _grid(("code", "meaning", "errors"), rows)


def _grid(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (header, tuple("---" for _ in header), *rows):
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    (ROOT / PAGE).write_text(page(), encoding="utf-8")
