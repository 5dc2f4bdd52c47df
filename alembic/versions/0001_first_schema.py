"""Create the whole schema of the first release.

Its SQL is frozen text in the folder of this file's name: `tables.sql`, and one file for each view,
function and trigger, with its version in its name. `common` has the files for both databases.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import text

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FOLDER = Path(__file__).with_suffix("")
VIEWS = (
    "v_experiences_v1",
    "v_tasks_v1",
    "v_agents_v1",
    "v_groups_v1",
    "v_episodes_v1",
    "v_buffers_v1",
    "v_fields_v1",
    "v_priorities_v1",
    "v_flow_v1",
    "v_waiting_v1",
    "v_samples_v1",
    "v_batches_v1",
    "v_storage_v1",
    "v_sessions_v1",
    "v_quarantine_v1",
    "v_leases_v1",
    "v_checkpoints_v1",
    "v_work_v1",
    "v_queue_v1",
    "v_labels_v1",
    "v_verdicts_v1",
    "v_documents_v1",
    "v_evictions_v1",
)
# In the order of their creation.
OBJECTS = {
    "sqlite": (
        "row_messages_v1",
        "step_numbers_v1",
        "chunk_steps_v1",
        "v_windows_v1",
        "retention_bounds_v1",
        "step_sums_v1",
        "episode_states_v1",
        "new_special_rows_v1",
        "new_episode_steps_v1",
        "trg_new_episode_steps_v1",
        "trg_new_special_rows_queued_v1",
        "trg_new_special_rows_by_task_v1",
        "trg_new_special_rows_by_episode_v1",
        "new_group_changes_v1",
        "trg_new_group_changes_v1",
        "trg_rollout_stats_insert_v1",
        "trg_rollout_stats_update_v1",
        "trg_rollout_stats_delete_v1",
        "trg_rollout_stats_queue_insert_v1",
        "trg_rollout_stats_queue_update_v1",
        "trg_rollout_stats_queue_delete_v1",
        "trg_rollout_stats_trim_v1",
        "trg_experiences_insert_v1",
        "trg_experiences_delete_v1",
        "trg_change_log_trim_v1",
        "trg_experiences_forget_v1",
        "trg_chunks_insert_v1",
        "trg_chunks_delete_v1",
        "trg_chunks_data_v1",
        "trg_deleted_steps_insert_v1",
        "trg_episodes_insert_v1",
        "trg_episodes_update_v1",
        "trg_episodes_judged_v1",
        "trg_episodes_work_v1",
        "trg_episodes_delete_v1",
        "trg_samples_insert_v1",
        "new_experiences_v1",
        "trg_new_experiences_insert_v1",
        *VIEWS,
        "trg_v_experiences_insert_v1",
        "trg_v_experiences_delete_v1",
    ),
    "postgresql": (
        "sqlbuffer_messages_v1",
        "sqlbuffer_step_messages_v1",
        "step_numbers_v1",
        "chunk_steps_v1",
        "v_windows_v1",
        "retention_bounds_v1",
        "step_sums_v1",
        "sqlbuffer_held_v1",
        "sqlbuffer_end_holds_v1",
        "sqlbuffer_forget_v1",
        "sqlbuffer_drop_chunks_v1",
        "sqlbuffer_evict_chunks_v1",
        "sqlbuffer_remove_steps_v1",
        "sqlbuffer_oldest_v1",
        "sqlbuffer_remove_v1",
        "sqlbuffer_remove_episodes_v1",
        "sqlbuffer_evict_tasks_v1",
        "episode_states_v1",
        "sqlbuffer_evict_episodes_v1",
        "sqlbuffer_raise_low_v1",
        "sqlbuffer_leave_v1",
        "sqlbuffer_evictable_v1",
        "sqlbuffer_sweep_v1",
        "sqlbuffer_summarize_v1",
        "sqlbuffer_count_rows_v1",
        "sqlbuffer_update_priorities_v1",
        "sqlbuffer_lease_v1",
        "sqlbuffer_note_write_v1",
        "sqlbuffer_forget_writes_v1",
        "sqlbuffer_count_evictions_v1",
        "sqlbuffer_trim_changes_v1",
        "sqlbuffer_change_groups_v1",
        "sqlbuffer_fold_groups_v1",
        "sqlbuffer_note_groups_v1",
        "sqlbuffer_after_rollouts_v1",
        "trg_rollout_stats_insert_v1",
        "trg_rollout_stats_update_v1",
        "trg_rollout_stats_delete_v1",
        "sqlbuffer_lock_episodes_v1",
        "sqlbuffer_settle_episodes_v1",
        "sqlbuffer_after_insert_v1",
        "trg_experiences_insert_v1",
        "sqlbuffer_after_chunks_v1",
        "trg_chunks_insert_v1",
        "sqlbuffer_keep_parts_v1",
        "sqlbuffer_find_messages_v1",
        "sqlbuffer_add_messages_v1",
        "sqlbuffer_first_seq_v1",
        "sqlbuffer_sweep_messages_v1",
        "sqlbuffer_used_messages_v1",
        "sqlbuffer_erase_messages_v1",
        "sqlbuffer_hold_v1",
        "sqlbuffer_lock_v1",
        "sqlbuffer_replace_v1",
        "sqlbuffer_reserve_v1",
        "sqlbuffer_number_row_v1",
        "trg_experiences_number_v1",
        "sqlbuffer_reserve_seqs_v1",
        "sqlbuffer_reserve_steps_v1",
        "type_packed_chunk_v1",
        "type_packed_episode_v1",
        "sqlbuffer_insert_chunks_v1",
        "sqlbuffer_end_episode_v1",
        "sqlbuffer_put_episodes_v1",
        "sqlbuffer_store_chunks_v1",
        "sqlbuffer_held_ids_v1",
        "sqlbuffer_slices_v1",
        "sqlbuffer_marks_v1",
        "sqlbuffer_ranges_v1",
        "sqlbuffer_free_episode_v1",
        "sqlbuffer_end_episodes_v1",
        "sqlbuffer_after_buffer_v1",
        "trg_buffers_change_v1",
        "sqlbuffer_before_delete_v1",
        "trg_experiences_before_delete_v1",
        "sqlbuffer_after_delete_v1",
        "trg_experiences_after_delete_v1",
        "trg_chunks_before_delete_v1",
        "trg_chunks_after_delete_v1",
        "sqlbuffer_after_episode_v1",
        "trg_episodes_insert_v1",
        "trg_episodes_update_v1",
        "sqlbuffer_judge_rollout_v1",
        "trg_episodes_judged_v1",
        "sqlbuffer_after_work_v1",
        "trg_episodes_work_v1",
        "sqlbuffer_forget_rollouts_v1",
        "trg_episodes_delete_v1",
        "sqlbuffer_note_versions_v1",
        "trg_samples_insert_v1",
        "sqlbuffer_number_v1",
        "new_experiences_v1",
        *VIEWS,
        "sqlbuffer_insert_by_name_v1",
        "trg_v_experiences_insert_v1",
        "sqlbuffer_delete_by_name_v1",
        "trg_v_experiences_before_delete_v1",
        "trg_v_experiences_delete_v1",
        "trg_v_experiences_after_delete_v1",
    ),
}
TRIGGER_TABLES = {
    "trg_change_log_": "change_log",
    "trg_buffers_": "buffers",
    "trg_new_": "new_experiences",
    "trg_experiences_": "experiences",
    "trg_v_experiences_": "v_experiences",
    "trg_episodes_": "episodes",
    "trg_chunks_": "chunks",
    "trg_deleted_": "deleted_steps",
    "trg_rollout_stats_": "rollout_stats",
    "trg_samples_": "samples",
}
# This function is for every reader; the other functions write with their owner's rights.
PUBLIC_FUNCTION = "sqlbuffer_number_v1"
# A colon that `text` would read as the beginning of a parameter.
WORD_AFTER_COLON = re.compile(r"(?<![:\w\\]):(?=\w)")


def upgrade() -> None:
    from alembic import op

    for statement in statements(op.get_bind().dialect.name):
        execute(statement)


def statements(dialect: str) -> Iterator[str]:
    """Yield the statements that create the schema: a new database executes them without Alembic,
    whose import takes as long as all of them.
    """
    yield from statements_of_tables(dialect)
    if dialect == "postgresql":
        # Functions are bound to the current schema.
        yield "SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)"
    for name in OBJECTS[dialect]:
        yield sql_of(dialect, name).strip()
        if name.startswith("sqlbuffer_") and name != PUBLIC_FUNCTION:
            yield f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC"
    if dialect == "postgresql":
        yield sql_of(dialect, "view_comments").strip()


def downgrade() -> None:
    from alembic import op

    dialect = op.get_bind().dialect.name
    if dialect == "postgresql":
        execute("DELETE FROM buffers")  # this drops the sequence of each
    for name in reversed(OBJECTS[dialect]):
        execute(f"DROP {dropped(dialect, name)}")
    created = re.findall(r"^CREATE TABLE (\w+)", sql_of(dialect, "tables"), re.MULTILINE)
    for table in reversed(created):
        execute(f"DROP TABLE {table}")


def sql_of(dialect: str, name: str) -> str:
    paths = (FOLDER / folder / f"{name}.sql" for folder in ("common", dialect))
    return next(path for path in paths if path.exists()).read_text(encoding="utf-8")


def statements_of_tables(dialect: str) -> list[str]:
    return [part.strip() for part in sql_of(dialect, "tables").split(";\n") if part.strip()]


def execute(statement: str) -> None:
    from alembic import context, op

    if context.is_offline_mode():
        # Alembic's connection accepts nothing else when it prints the SQL.
        op.get_bind().execute(text(WORD_AFTER_COLON.sub(r"\:", statement)))
    else:
        # The compiler would take as long as SQLite itself.
        op.get_bind().exec_driver_sql(statement, execution_options={"no_parameters": True})


def dropped(dialect: str, name: str) -> str:
    if name.startswith("trg_"):
        table = next(table for prefix, table in TRIGGER_TABLES.items() if name.startswith(prefix))
        return f"TRIGGER {name}" + (f" ON {table}" if dialect == "postgresql" else "")
    if name.startswith("type_"):
        return f"TYPE {name.removeprefix('type_')}"
    if name.startswith("sqlbuffer_"):
        return f"FUNCTION {name}"
    return f"VIEW {name.removesuffix('_v1')}"
