"""The tables. Migrations create them; a test proves that both say the same."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.dialects import postgresql

from sqlbuffer.storage.schema.column_types import IntegerList, RealList
from sqlbuffer.storage.schema.functions import utc_now

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Byte order everywhere, whatever the locale of the database.
KEY = Text().with_variant(Text(collation="C"), "postgresql")
JSON = Text().with_variant(postgresql.JSONB(), "postgresql")
UUID = Text().with_variant(postgresql.UUID(as_uuid=False), "postgresql")
TIME = Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
# SQLite counts row ids only for a column declared INTEGER.
SERIAL = BigInteger().with_variant(Integer(), "sqlite")
BYTES = LargeBinary()
SEQS = IntegerList()
REALS = RealList()

buffers = Table(
    "buffers",
    metadata,
    Column("id", Integer, primary_key=True, comment="key of the buffer in every other table"),
    Column("name", KEY, nullable=False, unique=True, comment="name given at creation"),
    Column("max_capacity", BigInteger, comment="rows held at most; null is unlimited"),
    Column("max_episodes", BigInteger, comment="episodes held at most; null is unlimited"),
    Column(
        "evict_unit",
        Text,
        nullable=False,
        server_default="row",
        comment="what leaves at once: row, task or episode",
    ),
    Column("field_specs", JSON, comment="declared fields"),
    Column("compression", Text, comment="how the bytes of arrays are compressed; null: not"),
    Column(
        "codec_version",
        SmallInteger,
        nullable=False,
        server_default=text("1"),
        comment="format of payloads",
    ),
    Column("alpha", Double, comment="priority exponent"),
    Column("max_priority", Double, comment="largest priority ever set; null: none was"),
    Column(
        "block_size",
        Integer,
        nullable=False,
        server_default=text("256"),
        comment="numbers in a block of priority_blocks",
    ),
    Column("max_use", Integer, comment="a row is sampled so often at most; null: any number"),
    Column(
        "max_staleness",
        BigInteger,
        comment="rows older by the clock are not sampled; null: any age",
    ),
    Column("clock", BigInteger, comment="the learner's iteration or model version"),
    Column("session_id", Integer, comment="key of the session now; null: none was started"),
    Column(
        "current_session_only",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="rows of other sessions are not sampled",
    ),
    Column(
        "keep_expired",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="rows that may never be sampled again stay until they are evicted",
    ),
    Column(
        "max_row_bytes",
        BigInteger,
        nullable=False,
        server_default=text("268435456"),
        comment="a row whose payload is larger is refused",
    ),
    Column(
        "min_size",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows there must be before any is sampled",
    ),
    Column(
        "track_samples",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="batches are noted in samples",
    ),
    Column(
        "keep_samples_s",
        Double,
        nullable=False,
        server_default=text("604800"),
        comment="how long they are kept",
    ),
    Column("flow", JSON, comment="what limits inserts and samples, and the counts when it was set"),
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
        comment="nothing is left in priorities up to this seq",
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
        comment="rows held, where eviction is by task or episode",
    ),
    Column(
        "live_episodes",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="episodes held, where eviction is by episode",
    ),
    Column(
        "keep_episodes",
        BigInteger,
        nullable=False,
        server_default=text("1000000"),
        comment="rows of episodes that are kept at most once their steps have left",
    ),
    Column(
        "open_timeout_s",
        Double,
        nullable=False,
        server_default=text("3600"),
        comment="an open episode without a write for so long is abandoned",
    ),
    Column(
        "deletions",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="grows with every delete inside the window",
    ),
    Column(
        "n_expired",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows that left because they were too old",
    ),
    Column(
        "n_used_up",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows that left because they were used as often as they may be",
    ),
    Column(
        "n_other_session",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows that left because they were of another session",
    ),
    Column(
        "n_partial",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="rows that left because their group stayed incomplete",
    ),
    Column(
        "has_priorities",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="rows may have a row in priorities",
    ),
    Column(
        "has_uses",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="rows may have a row in uses",
    ),
    Column(
        "has_queue",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="rows may have a row in queue_items",
    ),
    Column(
        "has_labels",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="rows may have rows in labels and label_history",
    ),
    Column(
        "has_quarantine",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="rows may have a row in quarantine",
    ),
    Column(
        "has_parts",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="rows may have rows in payload_parts",
    ),
    Column(
        "has_changes",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="rows may have a row in payload_changes",
    ),
    Column(
        "created_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when the buffer was created",
    ),
    CheckConstraint("max_capacity > 0", name="max_capacity_positive"),
    CheckConstraint("max_episodes > 0", name="max_episodes_positive"),
    CheckConstraint("evict_unit IN ('row', 'task', 'episode')", name="evict_unit_known"),
    # The id of a dropped buffer is not given away again: a writer that missed the drop must not
    # meet another buffer.
    sqlite_autoincrement=True,
)

experiences = Table(
    "experiences",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
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
    Column("pre_agent", KEY, comment="the agent that acted before"),
    Column("step", BigInteger, nullable=False, comment="step within the task"),
    Column("execute_time", Double, comment="Unix time in seconds"),
    Column("episode_id", BigInteger, comment="key of the episode in episodes"),
    Column("t", Integer, comment="step within the episode"),
    Column("session_id", Integer, comment="key of the session in sessions"),
    Column("state", JSON, comment="observation"),
    Column("actions", JSON, comment="what was done"),
    Column("messages", JSON, comment="conversation of an LLM agent"),
    Column("extra", JSON, comment="anything else"),
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
        comment="how many bytes of arrays there are, where payload_parts has them",
    ),
    Column(
        "inserted_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when the row was written",
    ),
)
Index(
    None, experiences.c.buffer_id, experiences.c.task_id, experiences.c.agent_id, experiences.c.step
)
Index(
    "uq_experiences_buffer_id_id",
    experiences.c.buffer_id,
    experiences.c.id,
    unique=True,
    sqlite_where=experiences.c.id.is_not(None),
    postgresql_where=experiences.c.id.is_not(None),
)
Index(
    "ix_experiences_buffer_id_episode_id_t",
    experiences.c.buffer_id,
    experiences.c.episode_id,
    experiences.c.t,
    sqlite_where=experiences.c.episode_id.is_not(None),
    postgresql_where=experiences.c.episode_id.is_not(None),
)

episodes = Table(
    "episodes",
    metadata,
    Column("id", SERIAL, primary_key=True, comment="key of the episode"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column(
        "key", KEY, nullable=False, comment="the user's episode_id, unique within buffer and task"
    ),
    Column("task_id", KEY, nullable=False, comment="the task"),
    Column("agent_id", KEY, comment="the agent"),
    Column(
        "status",
        Text,
        nullable=False,
        server_default="open",
        comment="open, complete or aborted; v_episodes knows those that are abandoned",
    ),
    Column("length", Integer, comment="steps"),
    Column(
        "return",
        Double,
        comment="sum of rewards; while it is open, what annotations have changed of it",
    ),
    Column("reward", Double, comment="the episode's own reward"),
    Column("first_seq", BigInteger, comment="seq of the first step"),
    Column("last_seq", BigInteger, comment="seq of the last step"),
    Column("model_version", BigInteger, comment="version of the model at its start"),
    Column("meta", JSON, comment="user's fields"),
    Column("final_arrays", BYTES, comment="the final observation"),
    Column("started_at", TIME, nullable=False, server_default=utc_now(), comment="when it began"),
    Column("ended_at", TIME, comment="when it ended"),
    Column("n_rows", BigInteger, comment="rows held, where eviction is by episode"),
    UniqueConstraint("buffer_id", "key", "task_id"),
    CheckConstraint("status IN ('open', 'complete', 'aborted')", name="status_known"),
    # No number is given twice: readers go by it.
    sqlite_autoincrement=True,
)
Index(None, episodes.c.buffer_id, episodes.c.id)
# The oldest that is held, behind any number of those that have left.
Index(
    "ix_episodes_held",
    episodes.c.buffer_id,
    episodes.c.id,
    sqlite_where=episodes.c.n_rows > 0,
    postgresql_where=episodes.c.n_rows > 0,
)

# Those with steps that are left, without those whose steps have left.
Index(None, episodes.c.buffer_id, episodes.c.last_seq)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Integer, primary_key=True, comment="key of the session"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column("key", KEY, nullable=False, comment="the user's session_id, unique within the buffer"),
    Column("current_version", BigInteger, comment="model version now"),
    UniqueConstraint("buffer_id", "key"),
)

# Kept by triggers, for buffers that evict by task.
tasks = Table(
    "tasks",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("task_id", KEY, primary_key=True, comment="the task"),
    Column("n_rows", BigInteger, nullable=False, comment="rows held"),
    Column("last_seq", BigInteger, nullable=False, comment="seq of the last write"),
)
Index(None, tasks.c.buffer_id, tasks.c.last_seq)


def _seq_key() -> list[Column[int]]:
    return [
        Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
        Column("seq", BigInteger, primary_key=True, autoincrement=False, comment="the experience"),
    ]


priorities = Table(
    "priorities",
    metadata,
    *_seq_key(),
    Column("priority", Double, nullable=False, comment="priority since the first update"),
)

# What is known of the rows from block * block_size on. A block has no row before it is sealed, and
# none while its sum is not known.
priority_blocks = Table(
    "priority_blocks",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("block", BigInteger, primary_key=True, autoincrement=False, comment="seq / block_size"),
    Column("n_rows", Integer, nullable=False, comment="rows"),
    Column("weight_sum", Double, nullable=False, comment="sum of priority ^ alpha"),
    Column("max_priority", Double, nullable=False, comment="none is larger"),
    Column("min_priority", Double, comment="no positive one is smaller; null: none is positive"),
    Column(
        "max_is_loose",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="all may be smaller than max_priority",
    ),
    Column(
        "min_is_loose",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="all may be larger than min_priority",
    ),
    sqlite_with_rowid=False,  # all of them are read for a batch: in half the time
)

# How many rows there are from block * 4096 on, where eviction is by row. A block has no row here
# before it is counted, which is once no row can appear in it any more. Deletes inside the window
# subtract from it. Blocks are counted in ascending order, without a gap.
row_blocks = Table(
    "row_blocks",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("block", BigInteger, primary_key=True, autoincrement=False, comment="seq / 4096"),
    Column("n_rows", Integer, nullable=False, comment="rows"),
    sqlite_with_rowid=False,
)

uses = Table(
    "uses",
    metadata,
    *_seq_key(),
    Column("n_uses", Integer, nullable=False, comment="how often it was sampled"),
    # A batch of random rows touches a page for each: half as many in one tree as in two.
    sqlite_with_rowid=False,
)

# A row for each batch that was sampled, where the buffer notes them.
samples = Table(
    "samples",
    metadata,
    Column("id", SERIAL, primary_key=True, comment="number of the batch"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column("clock", BigInteger, comment="the learner's iteration or model version"),
    Column("sampler", Text, nullable=False, comment="name of the sampler"),
    Column("seed", Text, comment="its seed"),
    Column("n_rows", Integer, nullable=False, comment="rows of the batch"),
    Column("seqs", SEQS, nullable=False, comment="the rows, in the order of the batch"),
    Column("probabilities", REALS, comment="the probability of each, where it is known"),
    Column("sampled_at", TIME, nullable=False, server_default=utc_now(), comment="when"),
    # No number is given twice, whatever was forgotten.
    sqlite_autoincrement=True,
)
Index(None, samples.c.buffer_id, samples.c.clock)
Index(None, samples.c.buffer_id, samples.c.sampled_at)

# What each process has sampled: a row of its own, so that nobody queues on it. Those of processes
# long gone are added up under the empty holder.
flow = Table(
    "flow",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("holder", KEY, primary_key=True, comment="the process: host, pid and a random part"),
    Column("n_sampled", BigInteger, nullable=False, comment="rows sampled"),
    Column("n_batches", BigInteger, nullable=False, comment="batches sampled"),
    Column("n_limited", BigInteger, nullable=False, comment="rows sampled under a limiter"),
    Column("pushed", Double, nullable=False, comment="rows inserted, decayed (RatioWindow)"),
    Column("sampled", Double, nullable=False, comment="rows sampled, decayed (RatioWindow)"),
    Column("decayed_at", TIME, comment="up to when these two are decayed"),
    Column(
        "heartbeat_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when it last counted",
    ),
)

# Calls that wait for the other side.
flow_waits = Table(
    "flow_waits",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("holder", KEY, primary_key=True, comment="the call: its process and a random part"),
    Column("host", Text, nullable=False, comment="machine"),
    Column("pid", Integer, nullable=False, comment="process id"),
    Column("role", Text, nullable=False, comment="what it waits for: insert or sample"),
    Column("n_rows", BigInteger, nullable=False, comment="how many rows it is about"),
    Column(
        "waiting_since",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="since when it waits",
    ),
    Column(
        "heartbeat_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when it was last heard of",
    ),
)

# Rows sampled in ten seconds, for rates; kept for an hour.
flow_history = Table(
    "flow_history",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column(
        "bucket",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="Unix time in seconds / 10",
    ),
    Column("holder", KEY, primary_key=True, comment="the process"),
    Column("n_sampled", BigInteger, nullable=False, comment="rows sampled"),
    Column("n_batches", BigInteger, nullable=False, comment="batches sampled"),
)

queue_items = Table(
    "queue_items",
    metadata,
    *_seq_key(),
    Column("task_id", KEY, nullable=False, comment="its task"),
    Column("episode_id", BigInteger, comment="key of its episode"),
    Column("model_version", BigInteger, comment="version of the model that acted"),
    Column("session_id", Integer, comment="key of its session"),
    Column(
        "freshness",
        BigInteger,
        nullable=False,
        comment="model_version, or the least number where there is none",
    ),
    Column(
        "n_uses", Integer, nullable=False, server_default=text("0"), comment="acknowledged uses"
    ),
    Column(
        "used_up",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="used as often as it may be: the row leaves",
    ),
    Column("lease_id", KEY, comment="the lease that holds it"),
    Column("leased_until", TIME, comment="when the lease runs out; null: nobody holds it"),
    Column(
        "group_seq",
        BigInteger,
        comment="number of the group that it was first claimed in; null: it was not",
    ),
    Column(
        "inserted_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when the row was written",
    ),
)

Index(None, queue_items.c.buffer_id, queue_items.c.task_id)
# Only for those who ask for what is not used up: without statistics PostgreSQL takes this index for
# the primary key where it can.
Index(
    "ix_queue_items_freshness",
    queue_items.c.buffer_id,
    queue_items.c.freshness,
    queue_items.c.seq,
    sqlite_where=text("used_up = 0"),
    postgresql_where=text("NOT used_up"),
)
Index(
    "ix_queue_items_buffer_id_episode_id",
    queue_items.c.buffer_id,
    queue_items.c.episode_id,
    sqlite_where=queue_items.c.episode_id.is_not(None),
    postgresql_where=queue_items.c.episode_id.is_not(None),
)
Index(
    "ix_queue_items_used_up",
    queue_items.c.buffer_id,
    queue_items.c.seq,
    sqlite_where=text("used_up = 1"),
    postgresql_where=text("used_up"),
)

# Batches that are out. What was acknowledged is kept for a while, so that a call whose connection
# was lost finds out what became of it.
leases = Table(
    "leases",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("id", KEY, primary_key=True, comment="the lease"),
    Column("n_rows", BigInteger, nullable=False, comment="rows claimed"),
    Column(
        "claimed_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when it was claimed, or last renewed",
    ),
    Column("leased_until", TIME, nullable=False, comment="when it runs out"),
    Column(
        "acknowledged",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="its uses were counted",
    ),
)

# What holds now of rows that were annotated: null where the row's own value does.
labels = Table(
    "labels",
    metadata,
    *_seq_key(),
    Column("reward_t", Double, comment="reward given late"),
    Column("adv_t", Double, comment="advantage given late"),
    Column("v_t", Double, comment="value estimate given late"),
    Column("extra", JSON, comment="the row's extra with what was given late"),
)

label_history = Table(
    "label_history",
    metadata,
    *_seq_key(),
    Column(
        "version", BigInteger, primary_key=True, autoincrement=False, comment="the highest wins"
    ),
    Column("reward_t", Double, comment="reward given"),
    Column("adv_t", Double, comment="advantage given"),
    Column("v_t", Double, comment="value estimate given"),
    Column("extra", JSON, comment="keys of extra given"),
    Column("labelled_at", TIME, nullable=False, server_default=utc_now(), comment="when"),
)

quarantine = Table(
    "quarantine",
    metadata,
    *_seq_key(),
    Column("reason", Text, comment="why it is not sampled"),
    Column("quarantined_at", TIME, nullable=False, server_default=utc_now(), comment="since when"),
)

payload_parts = Table(
    "payload_parts",
    metadata,
    *_seq_key(),
    Column("part", Integer, primary_key=True, autoincrement=False, comment="order of the part"),
    Column("bytes", BYTES, nullable=False, comment="content of the part"),
)

# What became of rows that were changed after they were written (`replace_payload`).
payload_changes = Table(
    "payload_changes",
    metadata,
    *_seq_key(),
    Column("fields", Text, nullable=False, comment="which fields the last change wrote"),
    Column("n_changes", Integer, nullable=False, comment="how often the row was changed"),
    Column("changed_at", TIME, nullable=False, server_default=utc_now(), comment="when, last"),
)

# Numbered places that each show one episode, where a buffer has some: those of compat.memmap.
slot_rings = Table(
    "slot_rings",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("config", JSON, nullable=False, comment="what the buffer was made with"),
    Column(
        "next_turn",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="the slot that is next, counted on through every lap",
    ),
    Column(
        "num_episodes",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="episodes finished; at most one a slot",
    ),
    Column(
        "changes",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="how often stored steps were changed or deleted in place",
    ),
)

slots = Table(
    "slots",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("slot", Integer, primary_key=True, autoincrement=False, comment="the place"),
    Column(
        "turn",
        BigInteger,
        nullable=False,
        comment="its last use: slot + lap * number of slots; -1: it is free",
    ),
    Column("holder", KEY, comment="the writer that has it; null: nobody writes there"),
    Column("episode_id", BigInteger, comment="key of the episode that it shows"),
    Column("length", Integer, comment="its length; null while it is written"),
    Column("meta", BYTES, comment="its values of the meta fields, packed"),
    Column("tail", BYTES, comment="values of steps that have no row, packed"),
)
# Those of the lap that goes on: a few, of any number.
Index(None, slots.c.buffer_id, slots.c.turn)
Index(
    "ix_slots_held",
    slots.c.buffer_id,
    slots.c.slot,
    sqlite_where=slots.c.holder.is_not(None),
    postgresql_where=slots.c.holder.is_not(None),
)

slot_writers = Table(
    "slot_writers",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("holder", KEY, primary_key=True, comment="the process: host, pid and a random part"),
    Column("seen_at", TIME, nullable=False, server_default=utc_now(), comment="when it last wrote"),
)

# Chunks of fragments, where a buffer has some: those of compat.minestudio.
fragment_pools = Table(
    "fragment_pools",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("config", JSON, nullable=False, comment="what the buffer was made with"),
    Column("session", KEY, nullable=False, comment="the session now"),
    Column(
        "version",
        BigInteger,
        nullable=False,
        server_default=text("-1"),
        comment="the model version now",
    ),
    Column(
        "n_chunks",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="chunks that may be fetched: their places are 0 to n_chunks - 1",
    ),
    Column(
        "n_bytes",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="bytes of their payloads",
    ),
    Column(
        "next_chunk",
        BigInteger,
        nullable=False,
        server_default=text("1"),
        comment="number of the next chunk",
    ),
    Column(
        "low_chunk",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="no chunk up to this one may be fetched",
    ),
    Column("counts", JSON, nullable=False, comment="what was added and what left"),
)

chunks = Table(
    "chunks",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column(
        "chunk",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="number in the order of insertion",
    ),
    Column("place", Integer, comment="place among those that may be fetched; null: it has left"),
    Column("worker_uuid", KEY, nullable=False, comment="who made it: task_id of its fragments"),
    Column("first_fid", BigInteger, nullable=False, comment="step of its first fragment"),
    Column("session", KEY, nullable=False, comment="session of its first fragment"),
    Column("model_version", BigInteger, nullable=False, comment="version of its first fragment"),
    Column("oldest_version", BigInteger, nullable=False, comment="no fragment of it is older"),
    Column("n_bytes", BigInteger, nullable=False, comment="bytes of its payloads"),
    Column(
        "use_count",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="how often it was fetched",
    ),
    Column(
        "n_pins",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="prepared lists that hold it",
    ),
    Column("seqs", SEQS, nullable=False, comment="its fragments, in order"),
    Column(
        "inserted_at", TIME, nullable=False, server_default=utc_now(), comment="when it was whole"
    ),
)
Index(
    "ix_chunks_place",
    chunks.c.buffer_id,
    chunks.c.place,
    sqlite_where=chunks.c.place.is_not(None),
    postgresql_where=chunks.c.place.is_not(None),
)
Index(
    "ix_chunks_oldest_version",
    chunks.c.buffer_id,
    chunks.c.oldest_version,
    sqlite_where=chunks.c.place.is_not(None),
    postgresql_where=chunks.c.place.is_not(None),
)
# Those that nobody holds any more.
Index(
    "ix_chunks_left",
    chunks.c.buffer_id,
    chunks.c.chunk,
    sqlite_where=text("place IS NULL AND n_pins = 0"),
    postgresql_where=text("place IS NULL AND n_pins = 0"),
)

fragment_workers = Table(
    "fragment_workers",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("worker_uuid", KEY, primary_key=True, comment="the worker"),
    Column("last_fid", BigInteger, nullable=False, comment="number of its last fragment"),
    Column("last_seq", BigInteger, nullable=False, comment="seq of its last fragment"),
    Column("session", KEY, nullable=False, comment="session of that"),
    Column(
        "waiting",
        JSON,
        nullable=False,
        comment="fragments that are no chunk yet: [seq, model_version, bytes] of each",
    ),
    Column("oldest_waiting", BigInteger, comment="the oldest version of those; null: none"),
    Column("seen_at", TIME, nullable=False, server_default=utc_now(), comment="when it last wrote"),
)
Index(
    "ix_fragment_workers_waiting",
    fragment_workers.c.buffer_id,
    fragment_workers.c.oldest_waiting,
    sqlite_where=fragment_workers.c.oldest_waiting.is_not(None),
    postgresql_where=fragment_workers.c.oldest_waiting.is_not(None),
)

prepared_lists = Table(
    "prepared_lists",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("consumer", KEY, primary_key=True, comment="whose list; empty: that of all"),
    Column("token", KEY, nullable=False, comment="the call that fetched it"),
    Column("chunks", JSON, nullable=False, comment="its chunks, in order"),
    Column(
        "fragments",
        JSON,
        nullable=False,
        comment="its fragments, in order: [worker_uuid, fid_in_worker, id] of each",
    ),
    Column(
        "fetched_at", TIME, nullable=False, server_default=utc_now(), comment="when it was fetched"
    ),
)

# Counters of a ring of items, where a buffer is one: those of compat.ding.
item_rings = Table(
    "item_rings",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column("kind", Text, nullable=False, comment="what it is used as: naive, advanced, .."),
    Column(
        "push_count",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="items pushed, those that left included",
    ),
    Column(
        "tail",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="the place of the next item, below the capacity",
    ),
    Column("state", JSON, comment="what else the kind keeps"),
)

# The ids of the latest writes, so that a call whose connection was lost finds out whether its write
# was applied. Only PostgreSQL has rows here: a connection to a file is not lost.
applied_writes = Table(
    "applied_writes",
    metadata,
    Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer"),
    Column(
        "write_id",
        UUID,
        primary_key=True,
        comment="random id of the write",
    ),
    Column("kept_until", TIME, nullable=False, comment="no call asks for it after this"),
)

# One row: what a package that is older than the schema goes by.
schema_info = Table(
    "schema_info",
    metadata,
    Column(
        "min_client",
        Text,
        primary_key=True,
        comment="the oldest revision whose package may use this schema",
    ),
)

maintenance = Table(
    "maintenance",
    metadata,
    Column("task", Text, primary_key=True, comment="what one process at a time does"),
    Column("holder", Text, comment="the process that did it last"),
    Column("leased_until", TIME, comment="nobody else begins it before"),
)
