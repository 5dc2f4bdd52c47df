"""What a database has: objects with their texts, and what its tables are."""

import re

from sqlalchemy import inspect, text


def objects_of(connection):
    """Return every table, index, view, trigger, function and sequence there is, with its text."""
    if connection.dialect.name == "sqlite":
        statement = "SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2"
    else:
        statement = """
            SELECT 'relation ' || c.relkind::text, c.relname::text,
                CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) WHEN c.relkind = 'i'
                    THEN pg_get_indexdef(c.oid) END
            FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace
            UNION ALL
            SELECT 'function', p.oid::regprocedure::text, pg_get_functiondef(p.oid)
                || coalesce(p.proacl::text, '')
            FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace
            UNION ALL
            SELECT 'trigger', tgname::text, pg_get_triggerdef(t.oid) FROM pg_trigger t
            JOIN pg_class c ON c.oid = t.tgrelid
            WHERE NOT tgisinternal AND c.relnamespace = current_schema()::regnamespace
            ORDER BY 1, 2"""
    return [tuple(row) for row in connection.execute(text(statement))]


def indexes_of_expressions(connection, table):
    """Return the SQL of a table's indexes of expressions on SQLite, which are not reflected."""
    if connection.dialect.name != "sqlite":
        return []
    texts = connection.exec_driver_sql(
        "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? "
        "AND sql LIKE '%(%(%' ORDER BY name",
        (table,),
    )
    return list(texts.scalars())


def schema_of(connection):
    """Return what the tables are: columns, types, collations, defaults, keys, indexes, checks."""
    inspector = inspect(connection)
    found = {}
    for table in set(inspector.get_table_names()) - {"sqlbuffer_alembic_version"}:
        found[table] = {
            # Overlays add their flags to `buffers` in any order.
            "columns": sorted(
                [
                    (c["name"], str(c["type"]), getattr(c["type"], "collation", None),
                     c["nullable"], c["default"], c.get("comment"))
                    for c in inspector.get_columns(table)
                ],
                key=lambda column: column[0] if column[0].startswith("has_") else "",
            ),
            "primary key": inspector.get_pk_constraint(table),
            "unique": sorted(inspector.get_unique_constraints(table), key=lambda u: u["name"]),
            "checks": sorted(
                (c["name"], re.sub(r"\s+", " ", c["sqltext"]))
                for c in inspector.get_check_constraints(table)
            ),
            "indexes": sorted(
                (i["name"], i.get("expressions", i["column_names"]), bool(i["unique"]),
                 str(next((v for k, v in i.get("dialect_options", {}).items()
                           if k.endswith("_where")), None)))
                for i in inspector.get_indexes(table)
            ),
            "indexes of expressions": indexes_of_expressions(connection, table),
            "foreign keys": inspector.get_foreign_keys(table),
        }  # fmt: skip
    return found
