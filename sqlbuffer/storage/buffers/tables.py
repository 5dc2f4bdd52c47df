"""The tables of buffers, of their sessions, documents and rows."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    Sequence,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from sqlbuffer.storage.schema.expressions import random_uuid, utc_now
from sqlbuffer.storage.schema.metadata import (
    BYTES,
    IDS,
    JSON,
    JSON_TEXT,
    KEY,
    TIME,
    UUID,
    buffer_key,
    metadata,
    partial_index,
)
from sqlbuffer.storage.schema.number_keys import SQLITE_ONLY


def _flag(name: str, comment: str) -> Column[bool]:
    """Return a column of `buffers` that is true if a buffer may have rows in some table."""
    return Column(name, Boolean, nullable=False, server_default=false(), comment=comment)


buffers = Table(
    "buffers",
    metadata,
    Column("id", Integer, primary_key=True, comment="key of the buffer in every other table"),
    Column("name", KEY, nullable=False, unique=True, comment="name given at creation"),
    Column("layout", Text, comment="layout with more than rows; null: rows alone"),
    Column("max_capacity", BigInteger, comment="rows held at most; null is unlimited"),
    Column("max_episodes", BigInteger, comment="episodes held at most; null is unlimited"),
    Column("max_age_s", Double, comment="age of a step in seconds at most; null is unlimited"),
    Column("max_bytes", BigInteger, comment="bytes of all payloads at most; null is unlimited"),
    Column(
        "evict_unit",
        Text,
        nullable=False,
        server_default="row",
        comment="unit of eviction: row, task or episode",
    ),
    Column("alpha", Double, comment="priority exponent"),
    Column("max_priority", Double, comment="largest priority ever set; null if none was set"),
    Column(
        "block_size",
        Integer,
        nullable=False,
        server_default=text("256"),
        comment="numbers in a block of priority_blocks",
    ),
    Column("clock", BigInteger, comment="the learner's iteration or model version"),
    Column("session_id", Integer, comment="key of the current session; null if none was started"),
    Column("flow", JSON, comment="rate limiter, with the counts of rows when it was set"),
    Column(
        "low_seq",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows up to this seq have left",
    ),
    Column(
        "clean_seq",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="priorities has no rows up to this seq",
    ),
    Column(
        "next_seq",
        BigInteger,
        nullable=False,
        server_default=text("1"),
        comment="next seq (SQLite; PostgreSQL has a sequence)",
    ),
    Column(
        "live_rows",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows held, if eviction is by task or episode",
    ),
    Column(
        "live_episodes",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="episodes held, if eviction is by episode",
    ),
    Column(
        "keep_episodes",
        BigInteger,
        nullable=False,
        server_default=text("1000000"),
        comment="episode rows kept at most after their steps have left",
    ),
    Column(
        "open_timeout_s",
        Double,
        nullable=False,
        server_default=text("3600"),
        comment="seconds without a write after which an open episode is abandoned",
    ),
    Column(
        "deletions",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="grows with every delete inside the window",
    ),
    Column(
        "is_deleting",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="true while the library deletes rows and logs that itself (SQLite)",
    ),
    Column(
        "n_expired",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows that left because they were too stale",
    ),
    Column(
        "n_used_up",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows that left because they reached max_use",
    ),
    Column(
        "n_other_session",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows that left because they belonged to another session",
    ),
    Column(
        "n_partial",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows that left because their group stayed incomplete, or they came late",
    ),
    Column(
        "n_flat",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows that left because the rewards of their group differed too little",
    ),
    Column(
        "created_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when the buffer was created",
    ),
    Column(
        "n_added",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="typed fields that have been added to it",
    ),
    Column("field_defaults", JSON, comment="values of added fields in older steps, for conditions"),
    Column(
        "uuid",
        UUID,
        nullable=False,
        server_default=random_uuid(),
        comment="random id, which files and merges know the buffer by",
    ),
    # Placed behind the columns that each insert reads: on SQLite a long document has its own pages.
    Column(
        "config",
        JSON,
        nullable=False,
        server_default=text("'{}'"),
        comment="all settings; SQL reads those that are columns too",
    ),
    _flag("has_messages", "its steps share messages, which are in messages"),
    _flag("has_followers", "priorities, tasks and episodes that leave are logged as well"),
    _flag("has_chunks", "its steps are in chunks, and not in experiences"),
    _flag("has_step_ids", "steps of chunks may have a row in step_ids"),
    _flag("has_deleted", "steps of chunks may have a row in deleted_steps"),
    _flag("has_changes", "rows may have a row in payload_changes"),
    _flag("is_copying", "an unfinished copy: it takes steps from nowhere else"),
    _flag("has_uses", "rows may have a row in uses"),
    _flag("has_quarantine", "rows may have a row in quarantine"),
    _flag("has_holds", "there may be holds, which delay eviction"),
    _flag("has_labels", "rows may have rows in labels and label_history"),
    _flag("has_queue", "rows may have a row in queue_items"),
    _flag("has_priorities", "rows may have a row in priorities"),
    _flag("has_parts", "rows may have rows in payload_parts"),
    CheckConstraint("max_capacity > 0", name="max_capacity_positive"),
    CheckConstraint("max_episodes > 0", name="max_episodes_positive"),
    CheckConstraint("evict_unit IN ('row', 'task', 'episode')", name="evict_unit_known"),
    # The id of a dropped buffer is not used again: a writer that missed the drop must not write to
    # another buffer.
    sqlite_autoincrement=True,
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Integer, primary_key=True, comment="key of the session"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column("key", KEY, nullable=False, comment="the user's session_id, unique within the buffer"),
    Column("current_version", BigInteger, comment="current model version"),
    UniqueConstraint("buffer_id", "key"),
)

# Number of rows from block * 4096 on, if eviction is by row. A block gets a row here when it is
# counted, after no row can appear in it any more. Deletes inside the window subtract from it.
# Blocks are counted in ascending order, without a gap.
row_blocks = Table(
    "row_blocks",
    metadata,
    buffer_key(),
    Column("block", BigInteger, primary_key=True, autoincrement=False, comment="seq / 4096"),
    Column("n_rows", Integer, nullable=False, comment="rows"),
    sqlite_with_rowid=False,
)

experiences = Table(
    "experiences",
    metadata,
    buffer_key(),
    Column(
        "seq",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="insert order within the buffer",
    ),
    Column("id", KEY, comment="the user's id, unique within the buffer"),
    Column("task_id", KEY, nullable=False, comment="the task"),
    Column("task_name", KEY, comment="readable name of the task"),
    Column("agent_id", KEY, nullable=False, comment="the agent"),
    Column("pre_agent", KEY, comment="the previous agent"),
    Column("step", BigInteger, nullable=False, comment="step within the task"),
    Column("execute_time", Double, comment="Unix time in seconds"),
    Column("episode_id", BigInteger, comment="key of the episode in episodes"),
    Column("t", Integer, comment="step within the episode"),
    Column("session_id", Integer, comment="key of the session in sessions"),
    Column("state", JSON, comment="observation"),
    Column("actions", JSON, comment="the action"),
    Column("messages", JSON, comment="conversation of an LLM agent"),
    Column(
        "message_ids",
        IDS,
        comment="its messages that are in messages, as runs of ids: a first id, their number, and "
        "so on; after a 0 the place of one in the column messages; null: all are there",
    ),
    Column("extra", JSON, comment="other values"),
    Column("fields", JSON, comment="declared fields that conditions can use"),
    Column("reward_t", Double, comment="reward of the step"),
    Column("adv_t", Double, comment="advantage"),
    Column("v_t", Double, comment="value estimate"),
    Column("terminated", Boolean, comment="the episode ended in a terminal state"),
    Column("truncated", Boolean, comment="the episode was cut here"),
    Column("model_version", BigInteger, comment="version of the model that acted"),
    Column("initial_priority", Double, comment="priority that the row began with"),
    Column("arrays", BYTES, comment="bytes of arrays that the JSON refers to"),
    Column(
        "payload_bytes",
        BigInteger,
        comment="size in bytes of the arrays, if payload_parts has them",
    ),
    Column(
        "inserted_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when the row was written",
    ),
    info={"integer_key": "seq"},
)
# For ranges of numbers, counts and the views: a condition on `seq` alone cannot use the key.
Index(
    "uq_experiences_buffer_id_seq",
    experiences.c.buffer_id,
    experiences.c.seq,
    unique=True,
    info=SQLITE_ONLY,
).ddl_if(dialect="sqlite")
Index(
    None, experiences.c.buffer_id, experiences.c.task_id, experiences.c.agent_id, experiences.c.step
)
partial_index(
    "uq_experiences_buffer_id_id",
    experiences.c.buffer_id,
    experiences.c.id,
    unique=True,
    where=experiences.c.id.is_not(None),
)
partial_index(
    "ix_experiences_buffer_id_episode_id_t",
    experiences.c.buffer_id,
    experiences.c.episode_id,
    experiences.c.t,
    where=experiences.c.episode_id.is_not(None),
)

# Ids of the latest writes, so that a call that lost its connection finds out if its write was
# applied. Only PostgreSQL has rows here: a connection to a file is not lost.
applied_writes = Table(
    "applied_writes",
    metadata,
    buffer_key(),
    Column(
        "write_id",
        UUID,
        primary_key=True,
        comment="random id of the write",
    ),
    Column("kept_until", TIME, nullable=False, comment="no call looks for the id after this time"),
    Column(
        "first_seq",
        BigInteger,
        comment="first number of its steps; null if it stored no chunks",
    ),
)

# Messages of the conversations of a buffer with `shared_messages`, each once.
# PostgreSQL takes ids of messages from it.
Sequence("messages_id_seq", metadata=metadata, data_type=Integer())
messages = Table(
    "messages",
    metadata,
    buffer_key(),
    Column("id", Integer, primary_key=True, autoincrement=False, comment="number of the message"),
    Column(
        "hash",
        BYTES,
        comment="BLAKE2b of its JSON, 16 bytes; null: the row continues the one before (SQLite)",
    ),
    # The text of a list of messages is made of theirs, and that of JSONB has to be written first.
    Column(
        "content",
        JSON_TEXT,
        nullable=False,
        comment="the message, as JSON; on SQLite a long one has several rows",
    ),
    Column("last_seq", BigInteger, nullable=False, comment="no step with a greater seq uses it"),
    UniqueConstraint("buffer_id", "hash"),
    info={"is_vacuumed": True},
)
Index(None, messages.c.buffer_id, messages.c.last_seq)

_RIGHTS = "INSERT, UPDATE (version, value, changed_at), DELETE"

documents = Table(
    "documents",
    metadata,
    buffer_key(),
    Column("key", KEY, primary_key=True, comment="name of the document"),
    Column("version", BigInteger, nullable=False, comment="1, and one more with each change"),
    Column("value", JSON, nullable=False, comment="its value"),
    Column(
        "changed_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when it was written last",
    ),
    info={"writer_may": _RIGHTS, "learner_may": _RIGHTS, "is_vacuumed": True},
)
