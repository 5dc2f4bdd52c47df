"""The `sqlbuffer` command. Each command imports its modules when it runs, which keeps `--help`
quick.
"""

import typer

from sqlbuffer.cli import buffers, db, demo, diagnosis, pages, reading, transfers, watch
from sqlbuffer.cli.errors import ErrorsAsLines
from sqlbuffer.cli.options import WordLast

app = typer.Typer(
    cls=ErrorsAsLines,
    help="A replay buffer for reinforcement learning that lives in a SQL database.",
    epilog="URL is sqlite:///FILE, the path of a SQLite file, or postgresql://USER@HOST/DATABASE; "
    "by default SQLBUFFER_URL, else sqlite:///sqlbuffer.db. Exit codes: 0 ok, 1 failed, 2 usage, "
    "3 unreachable or not there, 4 needs `db init` or `db upgrade`, 5 busy.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode=None,
    # Its tracebacks show local variables, and a URL among them has a password.
    pretty_exceptions_enable=False,
)
app.command("demo", epilog=demo.DEMO_EXAMPLES)(demo.demo)
app.command("info", epilog=buffers.INFO_EXAMPLES)(buffers.info)
app.command("ls", epilog=buffers.LS_EXAMPLES)(buffers.ls)
app.command("show", cls=WordLast, epilog=reading.SHOW_EXAMPLES)(reading.show)
app.command("sql", cls=WordLast, epilog=reading.SQL_EXAMPLES)(reading.sql)
app.command("sample", epilog=reading.SAMPLE_EXAMPLES)(reading.sample)
app.command("watch", epilog=watch.WATCH_EXAMPLES)(watch.watch)
app.command("ui", epilog=pages.UI_EXAMPLES)(pages.ui)
app.command("report", epilog=pages.REPORT_EXAMPLES)(pages.report)
app.command("create", cls=WordLast, epilog=buffers.CREATE_EXAMPLES)(buffers.create)
app.command("resize", cls=WordLast, epilog=buffers.RESIZE_EXAMPLES)(buffers.resize)
app.command("add-field", cls=WordLast, epilog=buffers.ADD_FIELD_EXAMPLES)(buffers.add_field)
app.command("copy", epilog=transfers.COPY_EXAMPLES)(transfers.copy)
app.command("export", epilog=transfers.EXPORT_EXAMPLES)(transfers.export)
app.command("import", epilog=transfers.IMPORT_EXAMPLES)(transfers.import_)
app.command("insert", epilog=transfers.INSERT_EXAMPLES)(transfers.insert)
app.command("delete", epilog=buffers.DELETE_EXAMPLES)(buffers.delete)
app.command("expire", epilog=buffers.EXPIRE_EXAMPLES)(buffers.expire)
app.command("doctor", epilog=diagnosis.DOCTOR_EXAMPLES)(diagnosis.doctor)
app.command("errors", epilog=diagnosis.ERRORS_EXAMPLES)(diagnosis.errors)
app.add_typer(db.app, name="db")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from sqlbuffer import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Read the options in front of a command."""
