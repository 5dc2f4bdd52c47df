"""Commands that explain problems: `doctor` checks a database, `errors` explains an error."""

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sqlbuffer.cli.errors import UsageError, exit_code
from sqlbuffer.cli.options import Csv, Json, Ndjson, Url, database, example
from sqlbuffer.cli.output import Format, chosen, console, shown, write

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlbuffer.storage.inspect.doctor import Finding

DOCTOR_EXAMPLES = example(
    "sqlbuffer doctor sqlite:///replay.db --full",
    "sqlbuffer doctor postgresql://me@db.internal/replay --json",
)
_COLUMNS = ("status", "check", "detail", "remedy")
_STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


def doctor(
    url: Url = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also read the whole of a SQLite file (quick_check).")
    ] = False,
    json: Json = False,
    csv: Csv = False,
    ndjson: Ndjson = False,
) -> None:
    """Check a database, and show how to fix each problem.

    It prints a line for each check: OK, WARN or FAIL. It changes nothing. The exit code is 0, or
    the code of the first check that fails.
    """
    from sqlbuffer.storage.inspect.doctor import examine

    format_, url = chosen(json=json, csv=csv, ndjson=ndjson), database(url)
    failures: list[Finding] = []
    findings = _noting_failures(examine(url, full=full), failures)
    if format_ is Format.TABLE:
        _print_lines(findings)
    else:
        rows = ((f.status, f.name, f.detail, f.remedy) for f in findings)
        write(_COLUMNS, rows, format_)
    if failures:
        error = failures[0].error
        raise typer.Exit(1 if error is None else exit_code(error))


def _noting_failures(
    findings: "Iterable[Finding]", failures: "list[Finding]"
) -> "Iterable[Finding]":
    for finding in findings:
        if finding.status == "FAIL":
            failures.append(finding)
        yield finding


def _print_lines(findings: "Iterable[Finding]") -> None:
    from rich.text import Text

    out = console()
    for finding in findings:
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        line = f" {finding.name}: {finding.detail}{remedy}"
        out.print(
            Text.assemble((finding.status.ljust(4), _STYLES[finding.status]), shown(line)),
            soft_wrap=True,
        )


ERRORS_EXAMPLES = example("sqlbuffer errors", "sqlbuffer errors StorageBusyError")
_ENTRY = re.compile(r"^## (\w+)\n+(.*?)\s*(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
_FENCE = re.compile(r"^```\w*\n?", re.MULTILINE)


def errors(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The class of the error.", show_default=False),
    ] = None,
) -> None:
    """Show what causes an error and how to solve it. Without a name, list all errors."""
    entries: dict[str, str] = dict(_ENTRY.findall(_page()))
    if name is None:
        meanings = {error_name: text.partition("\n\n")[0] for error_name, text in entries.items()}
        rows = [(error_name, text.replace("\n", " ")) for error_name, text in meanings.items()]
        write(("error", "meaning"), rows, Format.TABLE)
        return
    known = {error_name.lower(): error_name for error_name in entries}
    asked = name.rpartition(".")[2].lower()
    if asked not in known:
        near = difflib.get_close_matches(asked, known, n=1)
        hint = f"did you mean {known[near[0]]}?" if near else "`sqlbuffer errors` lists all"
        raise UsageError(f"no error {name!r}; {hint}")
    typer.echo(f"{known[asked]}\n\n{_FENCE.sub('', entries[known[asked]]).rstrip()}")


def _page() -> str:
    """Return the page on errors: inside the installed package, or in the docs of a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "errors.md"
    page = installed if installed.exists() else package.parent / "docs/reference/errors.md"
    return _LINK.sub(r"\1", page.read_text(encoding="utf-8"))
