"""The `sqlbuffer` command. Each command imports its modules when it runs, which keeps `--help`
quick.
"""

import typer

from sqlbuffer.cli.commands import (
    create,
    db,
    delete,
    info,
    ls,
    resize,
    run_copy,
    run_demo,
    run_doctor,
    run_errors,
    run_export,
    run_import,
    run_insert,
    run_report,
    run_sql,
    run_ui,
    sample,
    show,
    watch,
)
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
app.command("demo", epilog=run_demo.EPILOG)(run_demo.demo)
app.command("info", epilog=info.EPILOG)(info.info)
app.command("ls", epilog=ls.EPILOG)(ls.ls)
app.command("show", cls=WordLast, epilog=show.EPILOG)(show.show)
app.command("sql", cls=WordLast, epilog=run_sql.EPILOG)(run_sql.sql)
app.command("sample", epilog=sample.EPILOG)(sample.sample)
app.command("watch", epilog=watch.EPILOG)(watch.watch)
app.command("ui", epilog=run_ui.EPILOG)(run_ui.ui)
app.command("report", epilog=run_report.EPILOG)(run_report.report)
app.command("create", cls=WordLast, epilog=create.EPILOG)(create.create)
app.command("resize", cls=WordLast, epilog=resize.EPILOG)(resize.resize)
app.command("copy", epilog=run_copy.EPILOG)(run_copy.copy)
app.command("export", epilog=run_export.EPILOG)(run_export.export)
app.command("import", epilog=run_import.EPILOG)(run_import.import_)
app.command("insert", epilog=run_insert.EPILOG)(run_insert.insert)
app.command("delete", epilog=delete.EPILOG)(delete.delete)
app.command("doctor", epilog=run_doctor.EPILOG)(run_doctor.doctor)
app.command("errors", epilog=run_errors.EPILOG)(run_errors.errors)
app.add_typer(db.app, name="db")


def _print_version(wanted: bool) -> None:
    if wanted:
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
