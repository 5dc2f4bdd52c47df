"""The whole schema of the first release."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from sqlbuffer.storage.schema.functions import utc_now
from sqlbuffer.storage.schema.triggers import create_objects, drop_objects

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text().with_variant(postgresql.JSONB(), "postgresql")
TIME = sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
SEQS = sa.Text().with_variant(postgresql.ARRAY(sa.BigInteger()), "postgresql")
REALS = sa.Text().with_variant(postgresql.ARRAY(sa.Double()), "postgresql")
UUID = sa.Text().with_variant(postgresql.UUID(as_uuid=False), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

OBJECTS = {
    "sqlite": (
        "episode_states_v1",
        "new_special_rows_v1",
        "trg_new_special_rows_queued_v1",
        "trg_new_special_rows_by_task_v1",
        "trg_new_special_rows_by_episode_v1",
        "trg_experiences_insert_v1",
        "trg_experiences_delete_v1",
        "trg_experiences_forget_v1",
        "trg_episodes_insert_v1",
        "trg_episodes_update_v1",
        "new_experiences_v1",
        "trg_new_experiences_insert_v1",
        "v_windows_v1",
        "v_experiences_v1",
        "v_tasks_v1",
        "v_agents_v1",
        "v_groups_v1",
        "v_episodes_v1",
        "v_buffers_v1",
        "v_priorities_v1",
        "v_flow_v1",
        "v_waiting_v1",
        "v_samples_v1",
        "v_sessions_v1",
        "v_quarantine_v1",
        "v_leases_v1",
        "v_queue_v1",
        "v_labels_v1",
        "v_slots_v1",
        "v_chunks_v1",
    ),
    "postgresql": (
        "v_windows_v1",
        "sqlbuffer_remove_v1",
        "sqlbuffer_evict_tasks_v1",
        "episode_states_v1",
        "sqlbuffer_evict_episodes_v1",
        "sqlbuffer_evictable_v1",
        "sqlbuffer_sweep_v1",
        "sqlbuffer_seal_v1",
        "sqlbuffer_count_rows_v1",
        "sqlbuffer_update_priorities_v1",
        "sqlbuffer_lease_v1",
        "sqlbuffer_note_write_v1",
        "sqlbuffer_forget_writes_v1",
        "sqlbuffer_after_insert_v1",
        "trg_experiences_insert_v1",
        "sqlbuffer_keep_parts_v1",
        "sqlbuffer_hold_v1",
        "sqlbuffer_lock_v1",
        "sqlbuffer_replace_v1",
        "sqlbuffer_number_row_v1",
        "trg_experiences_number_v1",
        "sqlbuffer_draw_v1",
        "sqlbuffer_free_episode_v1",
        "sqlbuffer_after_buffer_v1",
        "trg_buffers_change_v1",
        "sqlbuffer_before_delete_v1",
        "trg_experiences_before_delete_v1",
        "sqlbuffer_after_delete_v1",
        "trg_experiences_after_delete_v1",
        "sqlbuffer_after_episode_v1",
        "trg_episodes_insert_v1",
        "trg_episodes_update_v1",
        "sqlbuffer_number_v1",
        "new_experiences_v1",
        "v_experiences_v1",
        "v_tasks_v1",
        "v_agents_v1",
        "v_groups_v1",
        "v_episodes_v1",
        "v_buffers_v1",
        "v_priorities_v1",
        "v_flow_v1",
        "v_waiting_v1",
        "v_samples_v1",
        "v_sessions_v1",
        "v_quarantine_v1",
        "v_leases_v1",
        "v_queue_v1",
        "v_labels_v1",
        "v_slots_v1",
        "v_chunks_v1",
    ),
}
TABLES = (
    "buffers",
    "experiences",
    "episodes",
    "sessions",
    "tasks",
    "priorities",
    "priority_blocks",
    "row_blocks",
    "uses",
    "samples",
    "flow",
    "flow_waits",
    "flow_history",
    "queue_items",
    "leases",
    "labels",
    "label_history",
    "quarantine",
    "payload_parts",
    "payload_changes",
    "slot_rings",
    "slots",
    "slot_writers",
    "fragment_pools",
    "chunks",
    "fragment_workers",
    "prepared_lists",
    "item_rings",
    "applied_writes",
    "schema_info",
    "maintenance",
)
WITHOUT_BUFFER_ID = ("buffers", "schema_info", "maintenance")


def where_not_null(column: str) -> dict[str, Any]:
    condition = sa.text(f"{column} IS NOT NULL")
    return {"sqlite_where": condition, "postgresql_where": condition}


def upgrade() -> None:
    create_tables()
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        # Arrays do not compress; EXTERNAL also lets a part of them be read.
        op.execute("ALTER TABLE experiences ALTER COLUMN arrays SET STORAGE EXTERNAL")
        op.execute("ALTER TABLE payload_parts ALTER COLUMN bytes SET STORAGE EXTERNAL")
        # A claim and its acknowledgement find room for the row's new versions beside it.
        op.execute("ALTER TABLE queue_items SET (fillfactor = 50)")
        op.execute("ALTER TABLE leases SET (fillfactor = 50)")
        # Where no writer may VACUUM; see storage/vacuum.py.
        op.execute(
            "ALTER TABLE experiences SET (autovacuum_vacuum_scale_factor = 0.05, "
            "autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, "
            "autovacuum_analyze_scale_factor = 0.02, vacuum_truncate = off)"
        )
        # A new buffer is not in the statistics yet, so the planner would expect one row of it from
        # any index, and read all its rows to find a few. Without them it expects some of each.
        for table in TABLES:
            if table not in WITHOUT_BUFFER_ID:
                op.execute(f"ALTER TABLE {table} ALTER COLUMN buffer_id SET STATISTICS 0")
        # Nor has it no episodes because the others have none.
        op.execute("ALTER TABLE experiences ALTER COLUMN episode_id SET STATISTICS 0")
    op.execute("INSERT INTO schema_info (min_client) VALUES ('0001')")
    op.execute("INSERT INTO maintenance (task) VALUES ('vacuum'), ('analyze'), ('forget writes')")
    create_objects(connection, OBJECTS[connection.dialect.name])


def downgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        op.execute("DELETE FROM buffers")  # each takes its sequence along
    drop_objects(connection, OBJECTS[connection.dialect.name])
    for table in reversed(TABLES):
        op.drop_table(table)


def create_tables() -> None:
    op.create_table(
        "buffers",
        sa.Column(
            "id", sa.Integer(), nullable=False, comment="key of the buffer in every other table"
        ),
        sa.Column("name", KEY, nullable=False, comment="name given at creation"),
        sa.Column("max_capacity", sa.BigInteger(), comment="rows held at most; null is unlimited"),
        sa.Column(
            "max_episodes", sa.BigInteger(), comment="episodes held at most; null is unlimited"
        ),
        sa.Column(
            "evict_unit",
            sa.Text(),
            nullable=False,
            server_default="row",
            comment="what leaves at once: row, task or episode",
        ),
        sa.Column("field_specs", JSON, comment="declared fields"),
        sa.Column(
            "compression", sa.Text(), comment="how the bytes of arrays are compressed; null: not"
        ),
        sa.Column(
            "codec_version",
            sa.SmallInteger(),
            nullable=False,
            server_default=sa.text("1"),
            comment="format of payloads",
        ),
        sa.Column("alpha", sa.Double(), comment="priority exponent"),
        sa.Column("max_priority", sa.Double(), comment="largest priority ever set; null: none was"),
        sa.Column(
            "block_size",
            sa.Integer(),
            nullable=False,
            server_default=sa.text("256"),
            comment="numbers in a block of priority_blocks",
        ),
        sa.Column(
            "max_use", sa.Integer(), comment="a row is sampled so often at most; null: any number"
        ),
        sa.Column(
            "max_staleness",
            sa.BigInteger(),
            comment="rows older by the clock are not sampled; null: any age",
        ),
        sa.Column("clock", sa.BigInteger(), comment="the learner's iteration or model version"),
        sa.Column(
            "session_id", sa.Integer(), comment="key of the session now; null: none was started"
        ),
        sa.Column(
            "current_session_only",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="rows of other sessions are not sampled",
        ),
        sa.Column(
            "keep_expired",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="rows that may never be sampled again stay until they are evicted",
        ),
        sa.Column(
            "max_row_bytes",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("268435456"),
            comment="a row whose payload is larger is refused",
        ),
        sa.Column(
            "min_size",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="rows there must be before any is sampled",
        ),
        sa.Column(
            "track_samples",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="batches are noted in samples",
        ),
        sa.Column(
            "keep_samples_s",
            sa.Double(),
            nullable=False,
            server_default=sa.text("604800"),
            comment="how long they are kept",
        ),
        sa.Column(
            "flow", JSON, comment="what limits inserts and samples, and the counts when it was set"
        ),
        sa.Column(
            "low_seq",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="rows up to this seq have left",
        ),
        sa.Column(
            "clean_seq",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="nothing is left in priorities up to this seq",
        ),
        sa.Column(
            "next_seq",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("1"),
            comment="next seq (SQLite; PostgreSQL has a sequence)",
        ),
        sa.Column(
            "live_rows",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="rows held, where eviction is by task or episode",
        ),
        sa.Column(
            "live_episodes",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="episodes held, where eviction is by episode",
        ),
        sa.Column(
            "keep_episodes",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("1000000"),
            comment="rows of episodes that are kept at most once their steps have left",
        ),
        sa.Column(
            "open_timeout_s",
            sa.Double(),
            nullable=False,
            server_default=sa.text("3600"),
            comment="an open episode without a write for so long is abandoned",
        ),
        sa.Column(
            "deletions",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="grows with every delete inside the window",
        ),
        sa.Column(
            "n_expired",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="rows that left because they were too old",
        ),
        sa.Column(
            "n_used_up",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="rows that left because they were used as often as they may be",
        ),
        sa.Column(
            "n_other_session",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="rows that left because they were of another session",
        ),
        sa.Column(
            "n_partial",
            sa.BigInteger(),
            nullable=False,
            server_default=sa.text("0"),
            comment="rows that left because their group stayed incomplete",
        ),
        sa.Column(
            "has_priorities",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="rows may have a row in priorities",
        ),
        sa.Column(
            "has_uses",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="rows may have a row in uses",
        ),
        sa.Column(
            "has_queue",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="rows may have a row in queue_items",
        ),
        sa.Column(
            "has_labels",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="rows may have rows in labels and label_history",
        ),
        sa.Column(
            "has_quarantine",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="rows may have a row in quarantine",
        ),
        sa.Column(
            "has_parts",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="rows may have rows in payload_parts",
        ),
        sa.Column(
            "has_changes",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="rows may have a row in payload_changes",
        ),
        sa.Column(
            "created_at",
            TIME,
            nullable=False,
            server_default=utc_now(),
            comment="when the buffer was created",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_buffers"),
        sa.CheckConstraint("max_capacity > 0", name=op.f("ck_buffers_max_capacity_positive")),
        sa.CheckConstraint("max_episodes > 0", name=op.f("ck_buffers_max_episodes_positive")),
        sa.CheckConstraint(
            "evict_unit IN ('row', 'task', 'episode')", name=op.f("ck_buffers_evict_unit_known")
        ),
        sa.UniqueConstraint("name", name="uq_buffers_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "experiences",
        sa.Column(
            "buffer_id", sa.Integer(), autoincrement=False, nullable=False, comment="the buffer"
        ),
        sa.Column(
            "seq",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="insert order within the buffer",
        ),
        sa.Column("id", KEY, comment="the user's id, unique within the buffer"),
        sa.Column("task_id", KEY, nullable=False, comment="the task"),
        sa.Column("task_name", KEY, comment="readable name of the task"),
        sa.Column("agent_id", KEY, nullable=False, comment="the agent"),
        sa.Column("pre_agent", KEY, comment="the agent that acted before"),
        sa.Column("step", sa.BigInteger(), nullable=False, comment="step within the task"),
        sa.Column("execute_time", sa.Double(), comment="Unix time in seconds"),
        sa.Column("episode_id", sa.BigInteger(), comment="key of the episode in episodes"),
        sa.Column("t", sa.Integer(), comment="step within the episode"),
        sa.Column("session_id", sa.Integer(), comment="key of the session in sessions"),
        sa.Column("state", JSON, comment="observation"),
        sa.Column("actions", JSON, comment="what was done"),
        sa.Column("messages", JSON, comment="conversation of an LLM agent"),
        sa.Column("extra", JSON, comment="anything else"),
        sa.Column("fields", JSON, comment="declared fields that conditions can use"),
        sa.Column("reward_t", sa.Double(), comment="reward of the step"),
        sa.Column("adv_t", sa.Double(), comment="advantage"),
        sa.Column("v_t", sa.Double(), comment="value estimate"),
        sa.Column("terminated", sa.Boolean(), comment="the episode ended in a terminal state"),
        sa.Column("truncated", sa.Boolean(), comment="the episode was cut here"),
        sa.Column("model_version", sa.BigInteger(), comment="version of the model that acted"),
        sa.Column("initial_priority", sa.Double(), comment="priority that the row began with"),
        sa.Column("arrays", sa.LargeBinary(), comment="bytes of arrays that the JSON refers to"),
        sa.Column(
            "payload_bytes",
            sa.BigInteger(),
            comment="how many bytes of arrays there are, where payload_parts has them",
        ),
        sa.Column(
            "inserted_at",
            TIME,
            nullable=False,
            server_default=utc_now(),
            comment="when the row was written",
        ),
        sa.PrimaryKeyConstraint("buffer_id", "seq", name="pk_experiences"),
    )
    op.create_index(
        "ix_experiences_buffer_id_episode_id_t",
        "experiences",
        ["buffer_id", "episode_id", "t"],
        **where_not_null("episode_id"),
    )
    op.create_index(
        "ix_experiences_buffer_id_task_id_agent_id_step",
        "experiences",
        ["buffer_id", "task_id", "agent_id", "step"],
    )
    op.create_index(
        "uq_experiences_buffer_id_id",
        "experiences",
        ["buffer_id", "id"],
        unique=True,
        **where_not_null("id"),
    )
    op.create_table(
        "episodes",
        sa.Column("id", SERIAL, nullable=False, comment="key of the episode"),
        sa.Column("buffer_id", sa.Integer(), nullable=False, comment="the buffer"),
        sa.Column(
            "key",
            KEY,
            nullable=False,
            comment="the user's episode_id, unique within buffer and task",
        ),
        sa.Column("task_id", KEY, nullable=False, comment="the task"),
        sa.Column("agent_id", KEY, comment="the agent"),
        sa.Column(
            "status",
            sa.Text(),
            nullable=False,
            server_default="open",
            comment="open, complete or aborted; v_episodes knows those that are abandoned",
        ),
        sa.Column("length", sa.Integer(), comment="steps"),
        sa.Column(
            "return",
            sa.Double(),
            comment="sum of rewards; while it is open, what annotations have changed of it",
        ),
        sa.Column("reward", sa.Double(), comment="the episode's own reward"),
        sa.Column("first_seq", sa.BigInteger(), comment="seq of the first step"),
        sa.Column("last_seq", sa.BigInteger(), comment="seq of the last step"),
        sa.Column("model_version", sa.BigInteger(), comment="version of the model at its start"),
        sa.Column("meta", JSON, comment="user's fields"),
        sa.Column("final_arrays", sa.LargeBinary(), comment="the final observation"),
        sa.Column(
            "started_at", TIME, nullable=False, server_default=utc_now(), comment="when it began"
        ),
        sa.Column("ended_at", TIME, comment="when it ended"),
        sa.Column("n_rows", sa.BigInteger(), comment="rows held, where eviction is by episode"),
        sa.PrimaryKeyConstraint("id", name="pk_episodes"),
        sa.CheckConstraint(
            "status IN ('open', 'complete', 'aborted')", name=op.f("ck_episodes_status_known")
        ),
        sa.UniqueConstraint(
            "buffer_id", "key", "task_id", name="uq_episodes_buffer_id_key_task_id"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_episodes_buffer_id_id", "episodes", ["buffer_id", "id"])
    held = sa.text("n_rows > 0")
    op.create_index(
        "ix_episodes_held",
        "episodes",
        ["buffer_id", "id"],
        sqlite_where=held,
        postgresql_where=held,
    )
    op.create_index("ix_episodes_buffer_id_last_seq", "episodes", ["buffer_id", "last_seq"])
    op.create_table(
        "sessions",
        sa.Column("id", sa.Integer(), nullable=False, comment="key of the session"),
        sa.Column("buffer_id", sa.Integer(), nullable=False, comment="the buffer"),
        sa.Column(
            "key", KEY, nullable=False, comment="the user's session_id, unique within the buffer"
        ),
        sa.Column("current_version", sa.BigInteger(), comment="model version now"),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("buffer_id", "key", name="uq_sessions_buffer_id_key"),
    )
    op.create_table(
        "tasks",
        sa.Column(
            "buffer_id", sa.Integer(), autoincrement=False, nullable=False, comment="the buffer"
        ),
        sa.Column("task_id", KEY, nullable=False, comment="the task"),
        sa.Column("n_rows", sa.BigInteger(), nullable=False, comment="rows held"),
        sa.Column("last_seq", sa.BigInteger(), nullable=False, comment="seq of the last write"),
        sa.PrimaryKeyConstraint("buffer_id", "task_id", name="pk_tasks"),
    )
    op.create_index("ix_tasks_buffer_id_last_seq", "tasks", ["buffer_id", "last_seq"])
    op.create_table(
        "priorities",
        sa.Column(
            "buffer_id", sa.Integer(), autoincrement=False, nullable=False, comment="the buffer"
        ),
        sa.Column(
            "seq", sa.BigInteger(), autoincrement=False, nullable=False, comment="the experience"
        ),
        sa.Column(
            "priority", sa.Double(), nullable=False, comment="priority since the first update"
        ),
        sa.PrimaryKeyConstraint("buffer_id", "seq", name="pk_priorities"),
    )
    op.create_table(
        "priority_blocks",
        sa.Column(
            "buffer_id", sa.Integer(), autoincrement=False, nullable=False, comment="the buffer"
        ),
        sa.Column(
            "block",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="seq / block_size",
        ),
        sa.Column("n_rows", sa.Integer(), nullable=False, comment="rows"),
        sa.Column("weight_sum", sa.Double(), nullable=False, comment="sum of priority ^ alpha"),
        sa.Column("max_priority", sa.Double(), nullable=False, comment="none is larger"),
        sa.Column(
            "min_priority",
            sa.Double(),
            comment="no positive one is smaller; null: none is positive",
        ),
        sa.Column(
            "max_is_loose",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="all may be smaller than max_priority",
        ),
        sa.Column(
            "min_is_loose",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="all may be larger than min_priority",
        ),
        sa.PrimaryKeyConstraint("buffer_id", "block", name="pk_priority_blocks"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "row_blocks",
        sa.Column(
            "buffer_id", sa.Integer(), autoincrement=False, nullable=False, comment="the buffer"
        ),
        sa.Column(
            "block", sa.BigInteger(), autoincrement=False, nullable=False, comment="seq / 4096"
        ),
        sa.Column("n_rows", sa.Integer(), nullable=False, comment="rows"),
        sa.PrimaryKeyConstraint("buffer_id", "block", name="pk_row_blocks"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "uses",
        sa.Column(
            "buffer_id", sa.Integer(), autoincrement=False, nullable=False, comment="the buffer"
        ),
        sa.Column(
            "seq", sa.BigInteger(), autoincrement=False, nullable=False, comment="the experience"
        ),
        sa.Column("n_uses", sa.Integer(), nullable=False, comment="how often it was sampled"),
        sa.PrimaryKeyConstraint("buffer_id", "seq", name="pk_uses"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "samples",
        sa.Column("id", SERIAL, nullable=False, comment="number of the batch"),
        sa.Column("buffer_id", sa.Integer(), nullable=False, comment="the buffer"),
        sa.Column("clock", sa.BigInteger(), comment="the learner's iteration or model version"),
        sa.Column("sampler", sa.Text(), nullable=False, comment="name of the sampler"),
        sa.Column("seed", sa.Text(), comment="its seed"),
        sa.Column("n_rows", sa.Integer(), nullable=False, comment="rows of the batch"),
        sa.Column("seqs", SEQS, nullable=False, comment="the rows, in the order of the batch"),
        sa.Column("probabilities", REALS, comment="the probability of each, where it is known"),
        sa.Column("sampled_at", TIME, nullable=False, server_default=utc_now(), comment="when"),
        sa.PrimaryKeyConstraint("id", name="pk_samples"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_samples_buffer_id_clock", "samples", ["buffer_id", "clock"])
    op.create_index("ix_samples_buffer_id_sampled_at", "samples", ["buffer_id", "sampled_at"])
    create_flow_tables()
    create_late_tables()
    create_slot_tables()
    create_fragment_tables()
    create_applied_writes()
    op.create_table(
        "payload_parts",
        sa.Column(
            "buffer_id", sa.Integer(), autoincrement=False, nullable=False, comment="the buffer"
        ),
        sa.Column(
            "seq", sa.BigInteger(), autoincrement=False, nullable=False, comment="the experience"
        ),
        sa.Column(
            "part", sa.Integer(), autoincrement=False, nullable=False, comment="order of the part"
        ),
        sa.Column("bytes", sa.LargeBinary(), nullable=False, comment="content of the part"),
        sa.PrimaryKeyConstraint("buffer_id", "seq", "part", name="pk_payload_parts"),
    )
    op.create_table(
        "schema_info",
        sa.Column(
            "min_client",
            sa.Text(),
            nullable=False,
            comment="the oldest revision whose package may use this schema",
        ),
        sa.PrimaryKeyConstraint("min_client", name="pk_schema_info"),
    )
    op.create_table(
        "maintenance",
        sa.Column("task", sa.Text(), nullable=False, comment="what one process at a time does"),
        sa.Column("holder", sa.Text(), comment="the process that did it last"),
        sa.Column("leased_until", TIME, comment="nobody else begins it before"),
        sa.PrimaryKeyConstraint("task", name="pk_maintenance"),
    )


def create_late_tables() -> None:
    def keys() -> list[Any]:
        return [
            sa.Column(
                "buffer_id", sa.Integer(), autoincrement=False, nullable=False, comment="the buffer"
            ),
            sa.Column(
                "seq",
                sa.BigInteger(),
                autoincrement=False,
                nullable=False,
                comment="the experience",
            ),
        ]

    def time(name: str, comment: str) -> Any:
        return sa.Column(name, TIME, nullable=False, server_default=utc_now(), comment=comment)

    op.create_table(
        "queue_items",
        *keys(),
        sa.Column("task_id", KEY, nullable=False, comment="its task"),
        sa.Column("episode_id", sa.BigInteger(), comment="key of its episode"),
        sa.Column("model_version", sa.BigInteger(), comment="version of the model that acted"),
        sa.Column("session_id", sa.Integer(), comment="key of its session"),
        sa.Column(
            "freshness",
            sa.BigInteger(),
            nullable=False,
            comment="model_version, or the least number where there is none",
        ),
        sa.Column(
            "n_uses",
            sa.Integer(),
            nullable=False,
            server_default=sa.text("0"),
            comment="acknowledged uses",
        ),
        sa.Column(
            "used_up",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="used as often as it may be: the row leaves",
        ),
        sa.Column("lease_id", KEY, comment="the lease that holds it"),
        sa.Column("leased_until", TIME, comment="when the lease runs out; null: nobody holds it"),
        sa.Column(
            "group_seq",
            sa.BigInteger(),
            comment="number of the group that it was first claimed in; null: it was not",
        ),
        time("inserted_at", "when the row was written"),
        sa.PrimaryKeyConstraint("buffer_id", "seq", name="pk_queue_items"),
    )
    create_queue_indexes()
    op.create_table(
        "leases",
        keys()[0],
        sa.Column("id", KEY, nullable=False, comment="the lease"),
        sa.Column("n_rows", sa.BigInteger(), nullable=False, comment="rows claimed"),
        time("claimed_at", "when it was claimed, or last renewed"),
        sa.Column("leased_until", TIME, nullable=False, comment="when it runs out"),
        sa.Column(
            "acknowledged",
            sa.Boolean(),
            nullable=False,
            server_default=sa.false(),
            comment="its uses were counted",
        ),
        sa.PrimaryKeyConstraint("buffer_id", "id", name="pk_leases"),
    )
    op.create_table(
        "labels",
        *keys(),
        sa.Column("reward_t", sa.Double(), comment="reward given late"),
        sa.Column("adv_t", sa.Double(), comment="advantage given late"),
        sa.Column("v_t", sa.Double(), comment="value estimate given late"),
        sa.Column("extra", JSON, comment="the row's extra with what was given late"),
        sa.PrimaryKeyConstraint("buffer_id", "seq", name="pk_labels"),
    )
    op.create_table(
        "label_history",
        *keys(),
        sa.Column(
            "version",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="the highest wins",
        ),
        sa.Column("reward_t", sa.Double(), comment="reward given"),
        sa.Column("adv_t", sa.Double(), comment="advantage given"),
        sa.Column("v_t", sa.Double(), comment="value estimate given"),
        sa.Column("extra", JSON, comment="keys of extra given"),
        time("labelled_at", "when"),
        sa.PrimaryKeyConstraint("buffer_id", "seq", "version", name="pk_label_history"),
    )
    op.create_table(
        "quarantine",
        *keys(),
        sa.Column("reason", sa.Text(), comment="why it is not sampled"),
        time("quarantined_at", "since when"),
        sa.PrimaryKeyConstraint("buffer_id", "seq", name="pk_quarantine"),
    )


def create_applied_writes() -> None:
    op.create_table(
        "applied_writes",
        sa.Column(
            "buffer_id", sa.Integer(), autoincrement=False, nullable=False, comment="the buffer"
        ),
        sa.Column("write_id", UUID, nullable=False, comment="random id of the write"),
        sa.Column("kept_until", TIME, nullable=False, comment="no call asks for it after this"),
        sa.PrimaryKeyConstraint("buffer_id", "write_id", name="pk_applied_writes"),
    )


def create_slot_tables() -> None:
    def column(name: str, type_: Any, comment: str, **options: Any) -> Any:
        return sa.Column(name, type_, nullable=False, comment=comment, **options)

    def buffer_id() -> Any:
        return column("buffer_id", sa.Integer(), "the buffer", autoincrement=False)

    op.create_table(
        "payload_changes",
        buffer_id(),
        column("seq", sa.BigInteger(), "the experience", autoincrement=False),
        column("fields", sa.Text(), "which fields the last change wrote"),
        column("n_changes", sa.Integer(), "how often the row was changed"),
        column("changed_at", TIME, "when, last", server_default=utc_now()),
        sa.PrimaryKeyConstraint("buffer_id", "seq", name="pk_payload_changes"),
    )
    op.create_table(
        "slot_rings",
        buffer_id(),
        column("config", JSON, "what the buffer was made with"),
        column(
            "next_turn",
            sa.BigInteger(),
            "the slot that is next, counted on through every lap",
            server_default=sa.text("0"),
        ),
        column(
            "num_episodes",
            sa.BigInteger(),
            "episodes finished; at most one a slot",
            server_default=sa.text("0"),
        ),
        column(
            "changes",
            sa.BigInteger(),
            "how often stored steps were changed or deleted in place",
            server_default=sa.text("0"),
        ),
        sa.PrimaryKeyConstraint("buffer_id", name="pk_slot_rings"),
    )
    op.create_table(
        "slots",
        buffer_id(),
        column("slot", sa.Integer(), "the place", autoincrement=False),
        column(
            "turn",
            sa.BigInteger(),
            "its last use: slot + lap * number of slots; -1: it is free",
        ),
        sa.Column("holder", KEY, comment="the writer that has it; null: nobody writes there"),
        sa.Column("episode_id", sa.BigInteger(), comment="key of the episode that it shows"),
        sa.Column("length", sa.Integer(), comment="its length; null while it is written"),
        sa.Column("meta", sa.LargeBinary(), comment="its values of the meta fields, packed"),
        sa.Column("tail", sa.LargeBinary(), comment="values of steps that have no row, packed"),
        sa.PrimaryKeyConstraint("buffer_id", "slot", name="pk_slots"),
    )
    op.create_index("ix_slots_buffer_id_turn", "slots", ["buffer_id", "turn"])
    op.create_index("ix_slots_held", "slots", ["buffer_id", "slot"], **where_not_null("holder"))
    op.create_table(
        "slot_writers",
        buffer_id(),
        column("holder", KEY, "the process: host, pid and a random part"),
        column("seen_at", TIME, "when it last wrote", server_default=utc_now()),
        sa.PrimaryKeyConstraint("buffer_id", "holder", name="pk_slot_writers"),
    )
    op.create_table(
        "item_rings",
        buffer_id(),
        column("kind", sa.Text(), "what it is used as: naive, advanced, .."),
        column(
            "push_count",
            sa.BigInteger(),
            "items pushed, those that left included",
            server_default=sa.text("0"),
        ),
        column(
            "tail",
            sa.BigInteger(),
            "the place of the next item, below the capacity",
            server_default=sa.text("0"),
        ),
        sa.Column("state", JSON, comment="what else the kind keeps"),
        sa.PrimaryKeyConstraint("buffer_id", name="pk_item_rings"),
    )


def create_fragment_tables() -> None:
    def column(name: str, type_: Any, comment: str, **options: Any) -> Any:
        return sa.Column(name, type_, nullable=False, comment=comment, **options)

    def buffer_id() -> Any:
        return column("buffer_id", sa.Integer(), "the buffer", autoincrement=False)

    def number(name: str, comment: str, default: str, type_: Any = sa.BigInteger) -> Any:
        return column(name, type_(), comment, server_default=sa.text(default))

    op.create_table(
        "fragment_pools",
        buffer_id(),
        column("config", JSON, "what the buffer was made with"),
        column("session", KEY, "the session now"),
        number("version", "the model version now", "-1"),
        number(
            "n_chunks",
            "chunks that may be fetched: their places are 0 to n_chunks - 1",
            "0",
            sa.Integer,
        ),
        number("n_bytes", "bytes of their payloads", "0"),
        number("next_chunk", "number of the next chunk", "1"),
        number("low_chunk", "no chunk up to this one may be fetched", "0"),
        column("counts", JSON, "what was added and what left"),
        sa.PrimaryKeyConstraint("buffer_id", name="pk_fragment_pools"),
    )
    op.create_table(
        "chunks",
        buffer_id(),
        column("chunk", sa.BigInteger(), "number in the order of insertion", autoincrement=False),
        sa.Column(
            "place",
            sa.Integer(),
            comment="place among those that may be fetched; null: it has left",
        ),
        column("worker_uuid", KEY, "who made it: task_id of its fragments"),
        column("first_fid", sa.BigInteger(), "step of its first fragment"),
        column("session", KEY, "session of its first fragment"),
        column("model_version", sa.BigInteger(), "version of its first fragment"),
        column("oldest_version", sa.BigInteger(), "no fragment of it is older"),
        column("n_bytes", sa.BigInteger(), "bytes of its payloads"),
        number("use_count", "how often it was fetched", "0", sa.Integer),
        number("n_pins", "prepared lists that hold it", "0", sa.Integer),
        column("seqs", SEQS, "its fragments, in order"),
        column("inserted_at", TIME, "when it was whole", server_default=utc_now()),
        sa.PrimaryKeyConstraint("buffer_id", "chunk", name="pk_chunks"),
    )
    for name in ("place", "oldest_version"):
        op.create_index(
            f"ix_chunks_{name}", "chunks", ["buffer_id", name], **where_not_null("place")
        )
    left = sa.text("place IS NULL AND n_pins = 0")
    op.create_index(
        "ix_chunks_left",
        "chunks",
        ["buffer_id", "chunk"],
        sqlite_where=left,
        postgresql_where=left,
    )
    op.create_table(
        "fragment_workers",
        buffer_id(),
        column("worker_uuid", KEY, "the worker"),
        column("last_fid", sa.BigInteger(), "number of its last fragment"),
        column("last_seq", sa.BigInteger(), "seq of its last fragment"),
        column("session", KEY, "session of that"),
        column(
            "waiting",
            JSON,
            "fragments that are no chunk yet: [seq, model_version, bytes] of each",
        ),
        sa.Column(
            "oldest_waiting",
            sa.BigInteger(),
            comment="the oldest version of those; null: none",
        ),
        column("seen_at", TIME, "when it last wrote", server_default=utc_now()),
        sa.PrimaryKeyConstraint("buffer_id", "worker_uuid", name="pk_fragment_workers"),
    )
    op.create_index(
        "ix_fragment_workers_waiting",
        "fragment_workers",
        ["buffer_id", "oldest_waiting"],
        **where_not_null("oldest_waiting"),
    )
    op.create_table(
        "prepared_lists",
        buffer_id(),
        column("consumer", KEY, "whose list; empty: that of all"),
        column("token", KEY, "the call that fetched it"),
        column("chunks", JSON, "its chunks, in order"),
        column(
            "fragments",
            JSON,
            "its fragments, in order: [worker_uuid, fid_in_worker, id] of each",
        ),
        column("fetched_at", TIME, "when it was fetched", server_default=utc_now()),
        sa.PrimaryKeyConstraint("buffer_id", "consumer", name="pk_prepared_lists"),
    )


def create_queue_indexes() -> None:
    table, name = "queue_items", "ix_queue_items_buffer_id"
    op.create_index(f"{name}_task_id", table, ["buffer_id", "task_id"])
    op.create_index(
        "ix_queue_items_freshness",
        table,
        ["buffer_id", "freshness", "seq"],
        sqlite_where=sa.text("used_up = 0"),
        postgresql_where=sa.text("NOT used_up"),
    )
    op.create_index(
        f"{name}_episode_id",
        table,
        ["buffer_id", "episode_id"],
        **where_not_null("episode_id"),
    )
    op.create_index(
        "ix_queue_items_used_up",
        table,
        ["buffer_id", "seq"],
        sqlite_where=sa.text("used_up = 1"),
        postgresql_where=sa.text("used_up"),
    )


def create_flow_tables() -> None:
    def column(name: str, type_: Any, comment: str, **options: Any) -> Any:
        return sa.Column(name, type_, nullable=False, comment=comment, **options)

    def buffer_id() -> Any:
        return column("buffer_id", sa.Integer(), "the buffer", autoincrement=False)

    op.create_table(
        "flow",
        buffer_id(),
        column("holder", KEY, "the process: host, pid and a random part"),
        column("n_sampled", sa.BigInteger(), "rows sampled"),
        column("n_batches", sa.BigInteger(), "batches sampled"),
        column("n_limited", sa.BigInteger(), "rows sampled under a limiter"),
        column("pushed", sa.Double(), "rows inserted, decayed (RatioWindow)"),
        column("sampled", sa.Double(), "rows sampled, decayed (RatioWindow)"),
        sa.Column("decayed_at", TIME, comment="up to when these two are decayed"),
        column("heartbeat_at", TIME, "when it last counted", server_default=utc_now()),
        sa.PrimaryKeyConstraint("buffer_id", "holder", name="pk_flow"),
    )
    op.create_table(
        "flow_waits",
        buffer_id(),
        column("holder", KEY, "the call: its process and a random part"),
        column("host", sa.Text(), "machine"),
        column("pid", sa.Integer(), "process id"),
        column("role", sa.Text(), "what it waits for: insert or sample"),
        column("n_rows", sa.BigInteger(), "how many rows it is about"),
        column("waiting_since", TIME, "since when it waits", server_default=utc_now()),
        column("heartbeat_at", TIME, "when it was last heard of", server_default=utc_now()),
        sa.PrimaryKeyConstraint("buffer_id", "holder", name="pk_flow_waits"),
    )
    op.create_table(
        "flow_history",
        buffer_id(),
        column("bucket", sa.BigInteger(), "Unix time in seconds / 10", autoincrement=False),
        column("holder", KEY, "the process"),
        column("n_sampled", sa.BigInteger(), "rows sampled"),
        column("n_batches", sa.BigInteger(), "batches sampled"),
        sa.PrimaryKeyConstraint("buffer_id", "bucket", "holder", name="pk_flow_history"),
    )
