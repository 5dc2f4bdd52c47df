"""The tables of chunks: their narrow rows, their bytes, and facts about single steps."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.storage.schema.expressions import utc_now
from sqlbuffer.storage.schema.metadata import (
    BYTES,
    FLAGS,
    JSON,
    KEY,
    REALS,
    SEQS,
    TIME,
    UUID,
    buffer_key,
    index_transactions,
    metadata,
    overlay_table,
    partial_index,
    seq_key,
    transaction_id,
)
from sqlbuffer.storage.schema.number_keys import SQLITE_ONLY


def _first_seq() -> Column[int]:
    return Column(
        "first_seq", BigInteger, primary_key=True, autoincrement=False,
        comment="seq of the first step",
    )  # fmt: skip


# The key of SQLite is one integer; see `schema.number_keys`.
_INFO: dict[str, Any] = {
    "integer_key": "first_seq",
    "writer_may": "INSERT",
    "learner_may": "INSERT, DELETE",
    "is_vacuumed": True,
}

chunks = Table(
    "chunks",
    metadata,
    buffer_key(),
    _first_seq(),
    Column("n_steps", Integer, nullable=False, comment="number of steps, with the deleted ones"),
    Column("id", UUID, nullable=False, comment="random id of the chunk"),
    Column("task_id", KEY, nullable=False, comment="the task"),
    Column("task_name", KEY, comment="readable name of the task"),
    Column("agent_id", KEY, nullable=False, comment="the agent"),
    Column("pre_agent", KEY, comment="the previous agent"),
    Column("episode_id", BigInteger, comment="key of the episode in episodes"),
    Column("t", Integer, comment="step of the first within the episode"),
    Column("step", BigInteger, nullable=False, comment="step of the first within the task"),
    Column("steps", SEQS, comment="step of each, if they are not consecutive"),
    Column("session_id", Integer, comment="key of the session in sessions"),
    Column("model_version", BigInteger, comment="version of the model that acted"),
    Column("first_time", Double, comment="Unix time of the first step"),
    Column(
        "last_time",
        Double,
        comment="Unix time of the last step; those between are interpolated",
    ),
    Column(
        "times",
        REALS,
        comment=(
            "Unix time of each, if it was given; then first_time and last_time are the "
            "minimum and the maximum"
        ),
    ),
    Column("reward_t", REALS, comment="reward of each step; null if no step has one"),
    Column("adv_t", REALS, comment="advantage of each"),
    Column("v_t", REALS, comment="value estimate of each"),
    Column(
        "terminated", FLAGS, comment="true for each step that ended the episode in a terminal state"
    ),
    Column("truncated", FLAGS, comment="true for each step at which the episode was truncated"),
    Column("initial_priority", REALS, comment="priority that each began with"),
    Column("fields", JSON, comment="lists of the declared fields that conditions can use, by name"),
    Column(
        "inserted_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when the chunk was written",
    ),
    transaction_id(),
    CheckConstraint(f"n_steps BETWEEN 1 AND {MAX_CHUNK_STEPS}", name="n_steps_known"),
    info=_INFO,
)
Index(None, chunks.c.buffer_id, chunks.c.task_id, chunks.c.agent_id)
index_transactions(chunks)
# For ranges of numbers in the views, and counts: a condition on `first_seq` cannot use the key.
Index(
    "ix_chunks_buffer_id_first_seq_n_steps",
    chunks.c.buffer_id,
    chunks.c.first_seq,
    chunks.c.n_steps,
    info=SQLITE_ONLY,
).ddl_if(dialect="sqlite")
Index("uq_chunks_buffer_id_id", chunks.c.buffer_id, chunks.c.id, unique=True)
partial_index(
    "ix_chunks_buffer_id_episode_id_t",
    chunks.c.buffer_id,
    chunks.c.episode_id,
    chunks.c.t,
    where=chunks.c.episode_id.is_not(None),
)
# For draws of transitions, which a step without an episode does not have.
partial_index(
    "ix_chunks_buffer_id_first_seq_no_episode",
    chunks.c.buffer_id,
    chunks.c.first_seq,
    where=chunks.c.episode_id.is_(None),
)

# A table without triggers: those of PostgreSQL copy whole rows.
chunk_data = Table(
    "chunk_data",
    metadata,
    buffer_key(),
    Column(
        "first_seq", BigInteger, primary_key=True, autoincrement=False,
        comment="seq of the first step of the chunk",
    ),
    # Repeated here, so that most batches read this table alone.
    Column("n_steps", Integer, nullable=False, comment="steps of the chunk"),
    Column("task_id", KEY, nullable=False, comment="the task"),
    Column("agent_id", KEY, nullable=False, comment="the agent"),
    Column("step", BigInteger, nullable=False, comment="step of the first within the task"),
    Column("steps", SEQS, comment="step of each, if they are not consecutive"),
    Column("episode_id", BigInteger, comment="key of the episode in episodes"),
    Column("t", Integer, comment="step of the first within the episode"),
    Column("block_steps", Integer, nullable=False, comment="steps in a block"),
    Column(
        "layout", Integer, nullable=False, server_default=text("0"),
        comment="number of fields that had been added to the buffer when it was packed",
    ),
    Column(
        "offsets",
        SEQS,
        comment=(
            "where each block begins, and the end; null: records of one size follow each other"
        ),
    ),
    Column(
        "rewards",
        BYTES,
        comment="rewards, big-endian 64-bit numbers, NaN for none; null if no step has one",
    ),
    Column(
        "ends",
        BYTES,
        comment=(
            "a byte for each step: 1 terminated, 2 truncated; empty if no step ended; "
            "null if no step says"
        ),
    ),
    # Placed behind the short columns: to reach a later one SQLite reads all pages of this one.
    Column("records", BYTES, nullable=False, comment="typed fields of all steps, in blocks"),
    Column("payloads", JSON, comment="JSON of each step; null: of none"),
    Column("payload_arrays", BYTES, comment="bytes of arrays that the JSON refers to"),
    info=_INFO,
)  # fmt: skip

# Joined by statements that read the single steps of chunks.
chunk_places = Table(
    "chunk_places",
    metadata,
    Column(
        "place", Integer, primary_key=True, autoincrement=False,
        comment="place of a step in its chunk, from 0",
    ),
    Column("path", Text, nullable=False, comment="JSON path of the place in a list"),
)  # fmt: skip

# These are not overlays: they belong to chunks alone, and are deleted with their chunk.
step_ids = Table(
    "step_ids",
    metadata,
    *seq_key(),
    Column("id", KEY, nullable=False, comment="the user's id, unique within the buffer"),
    UniqueConstraint("buffer_id", "id"),
    info={"writer_may": "INSERT", "learner_may": "INSERT, DELETE", "is_vacuumed": True},
)

deleted_steps = Table(
    "deleted_steps",
    metadata,
    *seq_key(),
    info={"learner_may": "INSERT, DELETE", "is_vacuumed": True},
    # One tree: it is searched for each step that is read.
    sqlite_with_rowid=False,
)

# Current values of a step that was changed in place: chunks are not rewritten. The overlay that
# notes such changes brings the flag.
replaced_steps = Table(
    "replaced_steps",
    metadata,
    *seq_key(),
    Column("record", BYTES, nullable=False, comment="typed fields, a block of one step"),
    Column("fields", JSON, comment="declared fields that conditions can use"),
    Column("reward_t", Double, comment="reward of the step"),
    Column("terminated", Boolean, comment="true if the episode ended there in a terminal state"),
    Column("truncated", Boolean, comment="true if the episode was truncated there"),
    info={"learner_may": "INSERT, UPDATE, DELETE", "is_vacuumed": True},
)


# Records of steps whose bytes were replaced in place.
payload_changes = overlay_table(
    "payload_changes",
    Column("fields", Text, nullable=False, comment="fields that the last change wrote"),
    Column("n_changes", Integer, nullable=False, comment="number of changes of the row"),
    Column(
        "changed_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of the last change",
    ),
    flag="has_changes",
)
