"""`sqlbuffer doctor`: check a database and print remedies."""

from typing import TYPE_CHECKING, Annotated

import typer

from sqlbuffer.cli.errors import exit_code
from sqlbuffer.cli.options import Csv, Json, Ndjson, Url, database, example
from sqlbuffer.cli.output import Format, chosen, write

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlbuffer.storage.inspect.doctor import Finding

EPILOG = example(
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

    from sqlbuffer.cli.output import console, shown

    out = console()
    for finding in findings:
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        line = f" {finding.name}: {finding.detail}{remedy}"
        out.print(
            Text.assemble((finding.status.ljust(4), _STYLES[finding.status]), shown(line)),
            soft_wrap=True,
        )
