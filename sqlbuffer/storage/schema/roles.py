"""The PostgreSQL roles of writers, learners and analysts."""

from collections.abc import Iterator
from importlib import resources

from sqlbuffer.storage.schema.metadata import metadata, vacuumed_tables
from sqlbuffer.storage.schema.overlays import OVERLAYS


def roles_script() -> str:
    """Return the SQL that creates the roles, each with the least rights."""
    script = resources.files("sqlbuffer.storage.schema") / "roles.sql"
    flags = {overlay.flag: None for overlay in OVERLAYS.values() if overlay.learner_sets_flag}
    return script.read_text(encoding="utf-8").format(
        tables=", ".join(metadata.tables),
        vacuumed=", ".join(vacuumed_tables()),
        flags=", ".join(flags),
        grants="\n".join(_grants()),
    )


def _grants() -> Iterator[str]:
    for name, table in metadata.tables.items():
        for role in ("writer", "learner"):
            if rights := table.info.get(f"{role}_may"):
                yield f"GRANT {rights} ON {name} TO sqlbuffer_{role};"
