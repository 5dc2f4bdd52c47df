"""Run the migrations on the connection that the library passes, or on SQLBUFFER_URL.

Offline, print their SQL.
"""

from alembic import context
from sqlalchemy import Connection, MetaData

from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.migrations.migrate import VERSION_TABLE
from sqlbuffer.storage.schema.metadata import ddl_metadata, metadata
from sqlbuffer.storage.schema.number_keys import is_of_the_model


def run(connection: Connection, models: MetaData) -> None:
    context.configure(
        connection=connection,
        target_metadata=models,
        version_table=VERSION_TABLE,
        include_object=is_of_the_model,
    )
    with context.begin_transaction():
        context.run_migrations()


def print_sql(dialect: str) -> None:
    context.configure(
        dialect_name=dialect,
        # Any other style would double the percent signs.
        dialect_opts={"paramstyle": "named"},
        literal_binds=True,
        transactional_ddl=True,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
    )
    with context.begin_transaction():
        context.run_migrations()


handed_over = context.config.attributes.get("connection")
if context.is_offline_mode():
    named = context.config.attributes.get("dialect")
    print_sql(named or resolve_url(None).get_backend_name())
elif handed_over is not None:
    run(handed_over, metadata)  # of which a migration reads the naming convention alone
else:
    with engine_for(resolve_url(None)).begin() as own:
        run(own, ddl_metadata())
