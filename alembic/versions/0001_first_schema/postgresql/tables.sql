CREATE TABLE buffers (
    id SERIAL NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    layout TEXT,
    max_capacity BIGINT,
    max_episodes BIGINT,
    max_age_s DOUBLE PRECISION,
    max_bytes BIGINT,
    evict_unit TEXT DEFAULT 'row' NOT NULL,
    alpha DOUBLE PRECISION,
    max_priority DOUBLE PRECISION,
    block_size INTEGER DEFAULT 256 NOT NULL,
    clock BIGINT,
    session_id INTEGER,
    flow JSONB,
    low_seq BIGINT DEFAULT 0 NOT NULL,
    clean_seq BIGINT DEFAULT 0 NOT NULL,
    next_seq BIGINT DEFAULT 1 NOT NULL,
    live_rows BIGINT DEFAULT 0 NOT NULL,
    live_episodes BIGINT DEFAULT 0 NOT NULL,
    keep_episodes BIGINT DEFAULT 1000000 NOT NULL,
    open_timeout_s DOUBLE PRECISION DEFAULT 3600 NOT NULL,
    deletions BIGINT DEFAULT 0 NOT NULL,
    is_deleting BOOLEAN DEFAULT false NOT NULL,
    n_expired BIGINT DEFAULT 0 NOT NULL,
    n_used_up BIGINT DEFAULT 0 NOT NULL,
    n_other_session BIGINT DEFAULT 0 NOT NULL,
    n_partial BIGINT DEFAULT 0 NOT NULL,
    n_flat BIGINT DEFAULT 0 NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    n_added INTEGER DEFAULT 0 NOT NULL,
    field_defaults JSONB,
    uuid UUID DEFAULT gen_random_uuid() NOT NULL,
    config JSONB DEFAULT '{}' NOT NULL,
    has_uses BOOLEAN DEFAULT false NOT NULL,
    has_quarantine BOOLEAN DEFAULT false NOT NULL,
    has_labels BOOLEAN DEFAULT false NOT NULL,
    has_queue BOOLEAN DEFAULT false NOT NULL,
    has_priorities BOOLEAN DEFAULT false NOT NULL,
    has_parts BOOLEAN DEFAULT false NOT NULL,
    has_messages BOOLEAN DEFAULT false NOT NULL,
    has_changes BOOLEAN DEFAULT false NOT NULL,
    has_chunks BOOLEAN DEFAULT false NOT NULL,
    has_step_ids BOOLEAN DEFAULT false NOT NULL,
    has_deleted BOOLEAN DEFAULT false NOT NULL,
    has_followers BOOLEAN DEFAULT false NOT NULL,
    is_copying BOOLEAN DEFAULT false NOT NULL,
    has_holds BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_buffers PRIMARY KEY (id),
    CONSTRAINT ck_buffers_max_capacity_positive CHECK (max_capacity > 0),
    CONSTRAINT ck_buffers_max_episodes_positive CHECK (max_episodes > 0),
    CONSTRAINT ck_buffers_evict_unit_known CHECK (evict_unit IN ('row', 'task', 'episode')),
    CONSTRAINT uq_buffers_name UNIQUE (name)
);
COMMENT ON COLUMN buffers.id IS 'key of the buffer in every other table';
COMMENT ON COLUMN buffers.name IS 'name given at creation';
COMMENT ON COLUMN buffers.layout IS 'layout with more than rows; null: rows alone';
COMMENT ON COLUMN buffers.max_capacity IS 'rows held at most; null is unlimited';
COMMENT ON COLUMN buffers.max_episodes IS 'episodes held at most; null is unlimited';
COMMENT ON COLUMN buffers.max_age_s IS 'age of a step in seconds at most; null is unlimited';
COMMENT ON COLUMN buffers.max_bytes IS 'bytes of all payloads at most; null is unlimited';
COMMENT ON COLUMN buffers.evict_unit IS 'unit of eviction: row, task or episode';
COMMENT ON COLUMN buffers.alpha IS 'priority exponent';
COMMENT ON COLUMN buffers.max_priority IS 'largest priority ever set; null if none was set';
COMMENT ON COLUMN buffers.block_size IS 'numbers in a block of priority_blocks';
COMMENT ON COLUMN buffers.clock IS 'the learner''s iteration or model version';
COMMENT ON COLUMN buffers.session_id IS 'key of the current session; null if none was started';
COMMENT ON COLUMN buffers.flow IS 'rate limiter, with the counts of rows when it was set';
COMMENT ON COLUMN buffers.low_seq IS 'rows up to this seq have left';
COMMENT ON COLUMN buffers.clean_seq IS 'priorities has no rows up to this seq';
COMMENT ON COLUMN buffers.next_seq IS 'next seq (SQLite; PostgreSQL has a sequence)';
COMMENT ON COLUMN buffers.live_rows IS 'rows held, if eviction is by task or episode';
COMMENT ON COLUMN buffers.live_episodes IS 'episodes held, if eviction is by episode';
COMMENT ON COLUMN buffers.keep_episodes IS 'episode rows kept at most after their steps have left';
COMMENT ON COLUMN buffers.open_timeout_s IS 'seconds without a write after which an open episode is abandoned';
COMMENT ON COLUMN buffers.deletions IS 'grows with every delete inside the window';
COMMENT ON COLUMN buffers.is_deleting IS 'true while the library deletes rows and logs that itself (SQLite)';
COMMENT ON COLUMN buffers.n_expired IS 'rows that left because they were too stale';
COMMENT ON COLUMN buffers.n_used_up IS 'rows that left because they reached max_use';
COMMENT ON COLUMN buffers.n_other_session IS 'rows that left because they belonged to another session';
COMMENT ON COLUMN buffers.n_partial IS 'rows that left because their group stayed incomplete, or they came late';
COMMENT ON COLUMN buffers.n_flat IS 'rows that left because the rewards of their group differed too little';
COMMENT ON COLUMN buffers.created_at IS 'when the buffer was created';
COMMENT ON COLUMN buffers.n_added IS 'typed fields that have been added to it';
COMMENT ON COLUMN buffers.field_defaults IS 'values of added fields in older steps, for conditions';
COMMENT ON COLUMN buffers.uuid IS 'random id, which files and merges know the buffer by';
COMMENT ON COLUMN buffers.config IS 'all settings; SQL reads those that are columns too';
COMMENT ON COLUMN buffers.has_uses IS 'rows may have a row in uses';
COMMENT ON COLUMN buffers.has_quarantine IS 'rows may have a row in quarantine';
COMMENT ON COLUMN buffers.has_labels IS 'rows may have rows in labels and label_history';
COMMENT ON COLUMN buffers.has_queue IS 'rows may have a row in queue_items';
COMMENT ON COLUMN buffers.has_priorities IS 'rows may have a row in priorities';
COMMENT ON COLUMN buffers.has_parts IS 'rows may have rows in payload_parts';
COMMENT ON COLUMN buffers.has_messages IS 'its steps share messages, which are in messages';
COMMENT ON COLUMN buffers.has_changes IS 'rows may have a row in payload_changes';
COMMENT ON COLUMN buffers.has_chunks IS 'its steps are in chunks, and not in experiences';
COMMENT ON COLUMN buffers.has_step_ids IS 'steps of chunks may have a row in step_ids';
COMMENT ON COLUMN buffers.has_deleted IS 'steps of chunks may have a row in deleted_steps';
COMMENT ON COLUMN buffers.has_followers IS 'priorities, tasks and episodes that leave are logged as well';
COMMENT ON COLUMN buffers.is_copying IS 'an unfinished copy: it takes steps from nowhere else';
COMMENT ON COLUMN buffers.has_holds IS 'there may be holds, which delay eviction';

CREATE TABLE experiences (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    id TEXT COLLATE "C",
    task_id TEXT COLLATE "C" NOT NULL,
    task_name TEXT COLLATE "C",
    agent_id TEXT COLLATE "C" NOT NULL,
    pre_agent TEXT COLLATE "C",
    step BIGINT NOT NULL,
    execute_time DOUBLE PRECISION,
    episode_id BIGINT,
    t INTEGER,
    session_id INTEGER,
    state JSONB,
    actions JSONB,
    messages JSONB,
    message_ids INTEGER[],
    extra JSONB,
    fields JSONB,
    reward_t DOUBLE PRECISION,
    adv_t DOUBLE PRECISION,
    v_t DOUBLE PRECISION,
    terminated BOOLEAN,
    truncated BOOLEAN,
    model_version BIGINT,
    initial_priority DOUBLE PRECISION,
    arrays BYTEA,
    payload_bytes BIGINT,
    inserted_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_experiences PRIMARY KEY (buffer_id, seq)
);
CREATE INDEX ix_experiences_buffer_id_episode_id_t ON experiences (buffer_id, episode_id, t) WHERE episode_id IS NOT NULL;
CREATE INDEX ix_experiences_buffer_id_task_id_agent_id_step ON experiences (buffer_id, task_id, agent_id, step);

CREATE UNIQUE INDEX uq_experiences_buffer_id_id ON experiences (buffer_id, id) WHERE id IS NOT NULL;
COMMENT ON COLUMN experiences.buffer_id IS 'the buffer';
COMMENT ON COLUMN experiences.seq IS 'insert order within the buffer';
COMMENT ON COLUMN experiences.id IS 'the user''s id, unique within the buffer';
COMMENT ON COLUMN experiences.task_id IS 'the task';
COMMENT ON COLUMN experiences.task_name IS 'readable name of the task';
COMMENT ON COLUMN experiences.agent_id IS 'the agent';
COMMENT ON COLUMN experiences.pre_agent IS 'the previous agent';
COMMENT ON COLUMN experiences.step IS 'step within the task';
COMMENT ON COLUMN experiences.execute_time IS 'Unix time in seconds';
COMMENT ON COLUMN experiences.episode_id IS 'key of the episode in episodes';
COMMENT ON COLUMN experiences.t IS 'step within the episode';
COMMENT ON COLUMN experiences.session_id IS 'key of the session in sessions';
COMMENT ON COLUMN experiences.state IS 'observation';
COMMENT ON COLUMN experiences.actions IS 'the action';
COMMENT ON COLUMN experiences.messages IS 'conversation of an LLM agent';
COMMENT ON COLUMN experiences.message_ids IS 'its messages that are in messages, as runs of ids: a first id, their number, and so on; after a 0 the place of one in the column messages; null: all are there';
COMMENT ON COLUMN experiences.extra IS 'other values';
COMMENT ON COLUMN experiences.fields IS 'declared fields that conditions can use';
COMMENT ON COLUMN experiences.reward_t IS 'reward of the step';
COMMENT ON COLUMN experiences.adv_t IS 'advantage';
COMMENT ON COLUMN experiences.v_t IS 'value estimate';
COMMENT ON COLUMN experiences.terminated IS 'the episode ended in a terminal state';
COMMENT ON COLUMN experiences.truncated IS 'the episode was cut here';
COMMENT ON COLUMN experiences.model_version IS 'version of the model that acted';
COMMENT ON COLUMN experiences.initial_priority IS 'priority that the row began with';
COMMENT ON COLUMN experiences.arrays IS 'bytes of arrays that the JSON refers to';
COMMENT ON COLUMN experiences.payload_bytes IS 'size in bytes of the arrays, if payload_parts has them';
COMMENT ON COLUMN experiences.inserted_at IS 'when the row was written';

CREATE TABLE chunks (
    buffer_id INTEGER NOT NULL,
    first_seq BIGINT NOT NULL,
    n_steps INTEGER NOT NULL,
    id UUID NOT NULL,
    task_id TEXT COLLATE "C" NOT NULL,
    task_name TEXT COLLATE "C",
    agent_id TEXT COLLATE "C" NOT NULL,
    pre_agent TEXT COLLATE "C",
    episode_id BIGINT,
    t INTEGER,
    step BIGINT NOT NULL,
    steps BIGINT[],
    session_id INTEGER,
    model_version BIGINT,
    first_time DOUBLE PRECISION,
    last_time DOUBLE PRECISION,
    times DOUBLE PRECISION[],
    reward_t DOUBLE PRECISION[],
    adv_t DOUBLE PRECISION[],
    v_t DOUBLE PRECISION[],
    terminated BOOLEAN[],
    truncated BOOLEAN[],
    initial_priority DOUBLE PRECISION[],
    fields JSONB,
    inserted_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    xid XID8 DEFAULT pg_current_xact_id(),
    CONSTRAINT pk_chunks PRIMARY KEY (buffer_id, first_seq),
    CONSTRAINT ck_chunks_n_steps_known CHECK (n_steps BETWEEN 1 AND 256)
);
CREATE INDEX ix_chunks_buffer_id_episode_id_t ON chunks (buffer_id, episode_id, t) WHERE episode_id IS NOT NULL;
CREATE INDEX ix_chunks_buffer_id_first_seq_no_episode ON chunks (buffer_id, first_seq) WHERE episode_id IS NULL;
CREATE INDEX ix_chunks_buffer_id_task_id_agent_id ON chunks (buffer_id, task_id, agent_id);
CREATE INDEX ix_chunks_buffer_id_xid ON chunks (buffer_id, xid);
CREATE UNIQUE INDEX uq_chunks_buffer_id_id ON chunks (buffer_id, id);
COMMENT ON COLUMN chunks.buffer_id IS 'the buffer';
COMMENT ON COLUMN chunks.first_seq IS 'seq of the first step';
COMMENT ON COLUMN chunks.n_steps IS 'number of steps, with the deleted ones';
COMMENT ON COLUMN chunks.id IS 'random id of the chunk';
COMMENT ON COLUMN chunks.task_id IS 'the task';
COMMENT ON COLUMN chunks.task_name IS 'readable name of the task';
COMMENT ON COLUMN chunks.agent_id IS 'the agent';
COMMENT ON COLUMN chunks.pre_agent IS 'the previous agent';
COMMENT ON COLUMN chunks.episode_id IS 'key of the episode in episodes';
COMMENT ON COLUMN chunks.t IS 'step of the first within the episode';
COMMENT ON COLUMN chunks.step IS 'step of the first within the task';
COMMENT ON COLUMN chunks.steps IS 'step of each, if they are not consecutive';
COMMENT ON COLUMN chunks.session_id IS 'key of the session in sessions';
COMMENT ON COLUMN chunks.model_version IS 'version of the model that acted';
COMMENT ON COLUMN chunks.first_time IS 'Unix time of the first step';
COMMENT ON COLUMN chunks.last_time IS 'Unix time of the last step; those between are interpolated';
COMMENT ON COLUMN chunks.times IS 'Unix time of each, if it was given; then first_time and last_time are the minimum and the maximum';
COMMENT ON COLUMN chunks.reward_t IS 'reward of each step; null if no step has one';
COMMENT ON COLUMN chunks.adv_t IS 'advantage of each';
COMMENT ON COLUMN chunks.v_t IS 'value estimate of each';
COMMENT ON COLUMN chunks.terminated IS 'true for each step that ended the episode in a terminal state';
COMMENT ON COLUMN chunks.truncated IS 'true for each step at which the episode was truncated';
COMMENT ON COLUMN chunks.initial_priority IS 'priority that each began with';
COMMENT ON COLUMN chunks.fields IS 'lists of the declared fields that conditions can use, by name';
COMMENT ON COLUMN chunks.inserted_at IS 'when the chunk was written';
COMMENT ON COLUMN chunks.xid IS 'transaction that wrote it (PostgreSQL; null on SQLite)';

CREATE TABLE chunk_data (
    buffer_id INTEGER NOT NULL,
    first_seq BIGINT NOT NULL,
    n_steps INTEGER NOT NULL,
    task_id TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C" NOT NULL,
    step BIGINT NOT NULL,
    steps BIGINT[],
    episode_id BIGINT,
    t INTEGER,
    block_steps INTEGER NOT NULL,
    layout INTEGER DEFAULT 0 NOT NULL,
    offsets BIGINT[],
    rewards BYTEA,
    ends BYTEA,
    records BYTEA NOT NULL,
    payloads JSONB,
    payload_arrays BYTEA,
    CONSTRAINT pk_chunk_data PRIMARY KEY (buffer_id, first_seq)
);
COMMENT ON COLUMN chunk_data.buffer_id IS 'the buffer';
COMMENT ON COLUMN chunk_data.first_seq IS 'seq of the first step of the chunk';
COMMENT ON COLUMN chunk_data.n_steps IS 'steps of the chunk';
COMMENT ON COLUMN chunk_data.task_id IS 'the task';
COMMENT ON COLUMN chunk_data.agent_id IS 'the agent';
COMMENT ON COLUMN chunk_data.step IS 'step of the first within the task';
COMMENT ON COLUMN chunk_data.steps IS 'step of each, if they are not consecutive';
COMMENT ON COLUMN chunk_data.episode_id IS 'key of the episode in episodes';
COMMENT ON COLUMN chunk_data.t IS 'step of the first within the episode';
COMMENT ON COLUMN chunk_data.block_steps IS 'steps in a block';
COMMENT ON COLUMN chunk_data.layout IS 'number of fields that had been added to the buffer when it was packed';
COMMENT ON COLUMN chunk_data.offsets IS 'where each block begins, and the end; null: records of one size follow each other';
COMMENT ON COLUMN chunk_data.rewards IS 'rewards, big-endian 64-bit numbers, NaN for none; null if no step has one';
COMMENT ON COLUMN chunk_data.ends IS 'a byte for each step: 1 terminated, 2 truncated; empty if no step ended; null if no step says';
COMMENT ON COLUMN chunk_data.records IS 'typed fields of all steps, in blocks';
COMMENT ON COLUMN chunk_data.payloads IS 'JSON of each step; null: of none';
COMMENT ON COLUMN chunk_data.payload_arrays IS 'bytes of arrays that the JSON refers to';

CREATE TABLE chunk_places (
    place INTEGER NOT NULL,
    path TEXT NOT NULL,
    CONSTRAINT pk_chunk_places PRIMARY KEY (place)
);
COMMENT ON COLUMN chunk_places.place IS 'place of a step in its chunk, from 0';
COMMENT ON COLUMN chunk_places.path IS 'JSON path of the place in a list';

CREATE TABLE step_ids (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    CONSTRAINT pk_step_ids PRIMARY KEY (buffer_id, seq),
    CONSTRAINT uq_step_ids_buffer_id_id UNIQUE (buffer_id, id)
);
COMMENT ON COLUMN step_ids.buffer_id IS 'the buffer';
COMMENT ON COLUMN step_ids.seq IS 'the experience';
COMMENT ON COLUMN step_ids.id IS 'the user''s id, unique within the buffer';

CREATE TABLE deleted_steps (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    CONSTRAINT pk_deleted_steps PRIMARY KEY (buffer_id, seq)
);
COMMENT ON COLUMN deleted_steps.buffer_id IS 'the buffer';
COMMENT ON COLUMN deleted_steps.seq IS 'the experience';

CREATE TABLE replaced_steps (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    record BYTEA NOT NULL,
    fields JSONB,
    reward_t DOUBLE PRECISION,
    terminated BOOLEAN,
    truncated BOOLEAN,
    CONSTRAINT pk_replaced_steps PRIMARY KEY (buffer_id, seq)
);
COMMENT ON COLUMN replaced_steps.buffer_id IS 'the buffer';
COMMENT ON COLUMN replaced_steps.seq IS 'the experience';
COMMENT ON COLUMN replaced_steps.record IS 'typed fields, a block of one step';
COMMENT ON COLUMN replaced_steps.fields IS 'declared fields that conditions can use';
COMMENT ON COLUMN replaced_steps.reward_t IS 'reward of the step';
COMMENT ON COLUMN replaced_steps.terminated IS 'true if the episode ended there in a terminal state';
COMMENT ON COLUMN replaced_steps.truncated IS 'true if the episode was truncated there';

CREATE TABLE episodes (
    id BIGSERIAL NOT NULL,
    buffer_id INTEGER NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    task_id TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C",
    group_id TEXT COLLATE "C",
    parent_id TEXT COLLATE "C",
    status TEXT DEFAULT 'open' NOT NULL,
    length INTEGER,
    return DOUBLE PRECISION,
    reward DOUBLE PRECISION,
    first_seq BIGINT,
    last_seq BIGINT,
    model_version BIGINT,
    meta JSONB,
    final_arrays BYTEA,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    n_rows BIGINT,
    next_t BIGINT DEFAULT 0 NOT NULL,
    is_implied BOOLEAN DEFAULT false NOT NULL,
    by_arrival BOOLEAN DEFAULT false NOT NULL,
    was_used BOOLEAN DEFAULT false NOT NULL,
    attempt INTEGER DEFAULT 0 NOT NULL,
    writer UUID,
    writers JSONB,
    verdicts JSONB,
    used_at TIMESTAMP WITH TIME ZONE,
    item_id BIGINT,
    CONSTRAINT pk_episodes PRIMARY KEY (id),
    CONSTRAINT uq_episodes_buffer_id_key_task_id UNIQUE (buffer_id, key, task_id),
    CONSTRAINT ck_episodes_status_known CHECK (status IN ('open', 'complete', 'aborted')),
    CONSTRAINT ck_episodes_parent_is_another CHECK (parent_id <> key)
);
CREATE INDEX ix_episodes_buffer_id_id ON episodes (buffer_id, id);
CREATE INDEX ix_episodes_buffer_id_last_seq ON episodes (buffer_id, last_seq);
CREATE INDEX ix_episodes_parent ON episodes (buffer_id, parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX ix_episodes_held ON episodes (buffer_id, id) WHERE n_rows > 0;
COMMENT ON COLUMN episodes.id IS 'key of the episode';
COMMENT ON COLUMN episodes.buffer_id IS 'the buffer';
COMMENT ON COLUMN episodes.key IS 'the user''s episode_id, unique within buffer and task';
COMMENT ON COLUMN episodes.task_id IS 'the task';
COMMENT ON COLUMN episodes.agent_id IS 'the agent';
COMMENT ON COLUMN episodes.group_id IS 'rollouts with the same one belong together; null: those of the task';
COMMENT ON COLUMN episodes.parent_id IS 'episode_id of the episode that it came from';
COMMENT ON COLUMN episodes.status IS 'open, complete or aborted; v_episodes also shows abandoned ones';
COMMENT ON COLUMN episodes.length IS 'steps';
COMMENT ON COLUMN episodes."return" IS 'sum of rewards; while the episode is open, the sum of changes by annotations';
COMMENT ON COLUMN episodes.reward IS 'reward of the episode itself';
COMMENT ON COLUMN episodes.first_seq IS 'seq of the first step';
COMMENT ON COLUMN episodes.last_seq IS 'seq of the last step';
COMMENT ON COLUMN episodes.model_version IS 'version of the model at its start';
COMMENT ON COLUMN episodes.meta IS 'user''s fields';
COMMENT ON COLUMN episodes.final_arrays IS 'the final observation';
COMMENT ON COLUMN episodes.started_at IS 'time when it began';
COMMENT ON COLUMN episodes.ended_at IS 'time when it ended';
COMMENT ON COLUMN episodes.n_rows IS 'rows held, if eviction is by episode';
COMMENT ON COLUMN episodes.next_t IS 'steps stored in chunks, which is the t of the next step';
COMMENT ON COLUMN episodes.is_implied IS 'true: its last step ended it, and no call; a later step opens it again';
COMMENT ON COLUMN episodes.by_arrival IS 'true: a row of it gave no step, so its rows are in the order of their arrival';
COMMENT ON COLUMN episodes.was_used IS 'true: a lease that held steps of it was acknowledged';
COMMENT ON COLUMN episodes.attempt IS '0: steps arrive without a writer; else the number of the writer that owns it';
COMMENT ON COLUMN episodes.writer IS 'random id of that writer';
COMMENT ON COLUMN episodes.writers IS 'who has continued it: attempt, host and process, time, and the place (t) where its steps begin';
COMMENT ON COLUMN episodes.verdicts IS 'rewards that annotate_episode gave it: version, reward and time';
COMMENT ON COLUMN episodes.used_at IS 'when the first such lease was acknowledged';
COMMENT ON COLUMN episodes.item_id IS 'the work item whose rollout it is; null: it was not handed out';

CREATE TABLE work_items (
    id BIGSERIAL NOT NULL,
    buffer_id INTEGER NOT NULL,
    group_id TEXT COLLATE "C" NOT NULL,
    sibling INTEGER NOT NULL,
    task_id TEXT COLLATE "C" NOT NULL,
    payload JSONB,
    status TEXT DEFAULT 'waiting' NOT NULL,
    attempt INTEGER DEFAULT 0 NOT NULL,
    max_attempts INTEGER,
    worker TEXT COLLATE "C",
    leased_until TIMESTAMP WITH TIME ZONE,
    episode_id TEXT COLLATE "C",
    reason TEXT,
    is_consumed BOOLEAN DEFAULT false NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    taken_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_work_items PRIMARY KEY (id),
    CONSTRAINT uq_work_items_buffer_id_group_id_sibling UNIQUE (buffer_id, group_id, sibling),
    CONSTRAINT ck_work_items_status_known CHECK (status IN ('waiting', 'taken', 'done', 'failed'))
);
CREATE INDEX ix_work_items_waiting ON work_items (buffer_id, id) WHERE status = 'waiting';
CREATE INDEX ix_work_items_taken ON work_items (buffer_id, leased_until) WHERE status = 'taken';
CREATE INDEX ix_work_items_stored ON work_items (buffer_id, id) WHERE status = 'done' AND NOT is_consumed;
COMMENT ON COLUMN work_items.id IS 'order of the items, and their key';
COMMENT ON COLUMN work_items.buffer_id IS 'the buffer';
COMMENT ON COLUMN work_items.group_id IS 'the group of rollouts';
COMMENT ON COLUMN work_items.sibling IS 'number of the rollout in its group, from 0';
COMMENT ON COLUMN work_items.task_id IS 'the task';
COMMENT ON COLUMN work_items.payload IS 'what the rollout needs, as given';
COMMENT ON COLUMN work_items.status IS 'waiting, taken, done or failed';
COMMENT ON COLUMN work_items.attempt IS 'how often it was taken';
COMMENT ON COLUMN work_items.max_attempts IS 'largest number of attempts; null: any';
COMMENT ON COLUMN work_items.worker IS 'who has taken it last';
COMMENT ON COLUMN work_items.leased_until IS 'when the lease of that one runs out; null unless it is taken';
COMMENT ON COLUMN work_items.episode_id IS 'the episode of the last attempt';
COMMENT ON COLUMN work_items.reason IS 'why the last attempt failed';
COMMENT ON COLUMN work_items.is_consumed IS 'true: its rollout was used by an acknowledged lease, or its steps have left';
COMMENT ON COLUMN work_items.created_at IS 'when it was put';
COMMENT ON COLUMN work_items.taken_at IS 'when it was taken last';
COMMENT ON COLUMN work_items.ended_at IS 'when it was done, or failed for good';

CREATE TABLE sessions (
    id SERIAL NOT NULL,
    buffer_id INTEGER NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    current_version BIGINT,
    CONSTRAINT pk_sessions PRIMARY KEY (id),
    CONSTRAINT uq_sessions_buffer_id_key UNIQUE (buffer_id, key)
);
COMMENT ON COLUMN sessions.id IS 'key of the session';
COMMENT ON COLUMN sessions.buffer_id IS 'the buffer';
COMMENT ON COLUMN sessions.key IS 'the user''s session_id, unique within the buffer';
COMMENT ON COLUMN sessions.current_version IS 'current model version';

CREATE TABLE tasks (
    buffer_id INTEGER NOT NULL,
    task_id TEXT COLLATE "C" NOT NULL,
    n_rows BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    CONSTRAINT pk_tasks PRIMARY KEY (buffer_id, task_id)
);
CREATE INDEX ix_tasks_buffer_id_last_seq ON tasks (buffer_id, last_seq);
COMMENT ON COLUMN tasks.buffer_id IS 'the buffer';
COMMENT ON COLUMN tasks.task_id IS 'the task';
COMMENT ON COLUMN tasks.n_rows IS 'rows held';
COMMENT ON COLUMN tasks.last_seq IS 'seq of the last write';

CREATE TABLE priorities (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    priority DOUBLE PRECISION NOT NULL,
    CONSTRAINT pk_priorities PRIMARY KEY (buffer_id, seq)
);
COMMENT ON COLUMN priorities.buffer_id IS 'the buffer';
COMMENT ON COLUMN priorities.seq IS 'the experience';
COMMENT ON COLUMN priorities.priority IS 'priority since the first update';

CREATE TABLE priority_blocks (
    buffer_id INTEGER NOT NULL,
    block BIGINT NOT NULL,
    n_rows INTEGER NOT NULL,
    weight_sum DOUBLE PRECISION NOT NULL,
    max_priority DOUBLE PRECISION NOT NULL,
    min_priority DOUBLE PRECISION,
    max_is_upper_bound BOOLEAN DEFAULT false NOT NULL,
    min_is_lower_bound BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_priority_blocks PRIMARY KEY (buffer_id, block)
);
COMMENT ON COLUMN priority_blocks.buffer_id IS 'the buffer';
COMMENT ON COLUMN priority_blocks.block IS 'seq / block_size';
COMMENT ON COLUMN priority_blocks.n_rows IS 'rows';
COMMENT ON COLUMN priority_blocks.weight_sum IS 'sum of priority ^ alpha';
COMMENT ON COLUMN priority_blocks.max_priority IS 'upper bound of the priorities';
COMMENT ON COLUMN priority_blocks.min_priority IS 'lower bound of the positive priorities; null if none is positive';
COMMENT ON COLUMN priority_blocks.max_is_upper_bound IS 'all priorities may be smaller than max_priority';
COMMENT ON COLUMN priority_blocks.min_is_lower_bound IS 'all positive priorities may be larger than min_priority';

CREATE TABLE row_blocks (
    buffer_id INTEGER NOT NULL,
    block BIGINT NOT NULL,
    n_rows INTEGER NOT NULL,
    CONSTRAINT pk_row_blocks PRIMARY KEY (buffer_id, block)
);
COMMENT ON COLUMN row_blocks.buffer_id IS 'the buffer';
COMMENT ON COLUMN row_blocks.block IS 'seq / 4096';
COMMENT ON COLUMN row_blocks.n_rows IS 'rows';

CREATE TABLE uses (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    n_uses INTEGER NOT NULL,
    CONSTRAINT pk_uses PRIMARY KEY (buffer_id, seq)
);
COMMENT ON COLUMN uses.buffer_id IS 'the buffer';
COMMENT ON COLUMN uses.seq IS 'the experience';
COMMENT ON COLUMN uses.n_uses IS 'number of times that it was sampled';

CREATE TABLE samples (
    id BIGSERIAL NOT NULL,
    buffer_id INTEGER NOT NULL,
    clock BIGINT,
    sampler TEXT NOT NULL,
    seed TEXT,
    n_rows INTEGER NOT NULL,
    seqs BIGINT[] NOT NULL,
    probabilities DOUBLE PRECISION[],
    model_versions BIGINT[],
    sampled_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    consumer TEXT COLLATE "C",
    undone BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_samples PRIMARY KEY (id)
);
CREATE INDEX ix_samples_buffer_id_clock ON samples (buffer_id, clock);
CREATE INDEX ix_samples_buffer_id_sampled_at ON samples (buffer_id, sampled_at);
COMMENT ON COLUMN samples.id IS 'number of the batch';
COMMENT ON COLUMN samples.buffer_id IS 'the buffer';
COMMENT ON COLUMN samples.clock IS 'the learner''s iteration or model version';
COMMENT ON COLUMN samples.sampler IS 'name of the sampler';
COMMENT ON COLUMN samples.seed IS 'its seed';
COMMENT ON COLUMN samples.n_rows IS 'rows of the batch';
COMMENT ON COLUMN samples.seqs IS 'the rows, in the order of the batch';
COMMENT ON COLUMN samples.probabilities IS 'the probability of each, if it is known';
COMMENT ON COLUMN samples.model_versions IS 'the model version of each; null: none has one';
COMMENT ON COLUMN samples.sampled_at IS 'when';
COMMENT ON COLUMN samples.consumer IS 'who leased the batch, where a name was given';
COMMENT ON COLUMN samples.undone IS 'true after its consumer went back to an earlier checkpoint';

CREATE TABLE flow (
    buffer_id INTEGER NOT NULL,
    holder TEXT COLLATE "C" NOT NULL,
    n_sampled BIGINT NOT NULL,
    n_batches BIGINT NOT NULL,
    n_limited BIGINT NOT NULL,
    pushed DOUBLE PRECISION NOT NULL,
    sampled DOUBLE PRECISION NOT NULL,
    decayed_at TIMESTAMP WITH TIME ZONE,
    heartbeat_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_flow PRIMARY KEY (buffer_id, holder)
);
COMMENT ON COLUMN flow.buffer_id IS 'the buffer';
COMMENT ON COLUMN flow.holder IS 'the process: host, pid and a random part';
COMMENT ON COLUMN flow.n_sampled IS 'rows sampled';
COMMENT ON COLUMN flow.n_batches IS 'batches sampled';
COMMENT ON COLUMN flow.n_limited IS 'rows sampled under a limiter';
COMMENT ON COLUMN flow.pushed IS 'rows inserted, decayed (RatioWindow)';
COMMENT ON COLUMN flow.sampled IS 'rows sampled, decayed (RatioWindow)';
COMMENT ON COLUMN flow.decayed_at IS 'Unix time up to which these two are decayed';
COMMENT ON COLUMN flow.heartbeat_at IS 'time of its last count';

CREATE TABLE flow_waits (
    buffer_id INTEGER NOT NULL,
    holder TEXT COLLATE "C" NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    role TEXT NOT NULL,
    n_rows BIGINT NOT NULL,
    waiting_since TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    heartbeat_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_flow_waits PRIMARY KEY (buffer_id, holder)
);
COMMENT ON COLUMN flow_waits.buffer_id IS 'the buffer';
COMMENT ON COLUMN flow_waits.holder IS 'the call: its process and a random part';
COMMENT ON COLUMN flow_waits.host IS 'machine';
COMMENT ON COLUMN flow_waits.pid IS 'process id';
COMMENT ON COLUMN flow_waits.role IS 'operation it waits for: insert or sample';
COMMENT ON COLUMN flow_waits.n_rows IS 'number of rows';
COMMENT ON COLUMN flow_waits.waiting_since IS 'start of the wait';
COMMENT ON COLUMN flow_waits.heartbeat_at IS 'time of its last sign of life';

CREATE TABLE flow_history (
    buffer_id INTEGER NOT NULL,
    bucket BIGINT NOT NULL,
    holder TEXT COLLATE "C" NOT NULL,
    n_sampled BIGINT NOT NULL,
    n_batches BIGINT NOT NULL,
    CONSTRAINT pk_flow_history PRIMARY KEY (buffer_id, bucket, holder)
);
COMMENT ON COLUMN flow_history.buffer_id IS 'the buffer';
COMMENT ON COLUMN flow_history.bucket IS 'Unix time in seconds / 10';
COMMENT ON COLUMN flow_history.holder IS 'the process';
COMMENT ON COLUMN flow_history.n_sampled IS 'rows sampled';
COMMENT ON COLUMN flow_history.n_batches IS 'batches sampled';

CREATE TABLE queue_items (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    task_id TEXT COLLATE "C" NOT NULL,
    group_id TEXT COLLATE "C" NOT NULL,
    episode_id BIGINT,
    model_version BIGINT,
    session_id INTEGER,
    freshness BIGINT NOT NULL,
    n_uses INTEGER DEFAULT 0 NOT NULL,
    used_up BOOLEAN DEFAULT false NOT NULL,
    lease_id TEXT COLLATE "C",
    leased_until TIMESTAMP WITH TIME ZONE,
    group_seq BIGINT,
    inserted_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_queue_items PRIMARY KEY (buffer_id, seq)
);
CREATE INDEX ix_queue_items_buffer_id_episode_id ON queue_items (buffer_id, episode_id) WHERE episode_id IS NOT NULL;
CREATE INDEX ix_queue_items_buffer_id_group_id ON queue_items (buffer_id, group_id);
CREATE INDEX ix_queue_items_buffer_id_task_id ON queue_items (buffer_id, task_id);
CREATE INDEX ix_queue_items_freshness ON queue_items (buffer_id, freshness, seq) WHERE NOT used_up;
CREATE INDEX ix_queue_items_used_up ON queue_items (buffer_id, seq) WHERE used_up AND leased_until IS NULL;
CREATE INDEX ix_queue_items_uses ON queue_items (buffer_id, n_uses, seq) WHERE NOT used_up;
COMMENT ON COLUMN queue_items.buffer_id IS 'the buffer';
COMMENT ON COLUMN queue_items.seq IS 'the experience';
COMMENT ON COLUMN queue_items.task_id IS 'its task';
COMMENT ON COLUMN queue_items.group_id IS 'its group: group_id of its episode, or else its task';
COMMENT ON COLUMN queue_items.episode_id IS 'key of its episode';
COMMENT ON COLUMN queue_items.model_version IS 'version of the model that acted';
COMMENT ON COLUMN queue_items.session_id IS 'key of its session';
COMMENT ON COLUMN queue_items.freshness IS 'model_version, or the smallest number if it has none';
COMMENT ON COLUMN queue_items.n_uses IS 'acknowledged uses';
COMMENT ON COLUMN queue_items.used_up IS 'reached max_use: the row leaves; or kept for a checkpoint';
COMMENT ON COLUMN queue_items.lease_id IS 'the lease that holds it';
COMMENT ON COLUMN queue_items.leased_until IS 'when the lease runs out; null if it is free';
COMMENT ON COLUMN queue_items.group_seq IS 'number of the group of its last claim; null if it was never claimed';
COMMENT ON COLUMN queue_items.inserted_at IS 'when the row was written';

CREATE TABLE leases (
    buffer_id INTEGER NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    n_rows BIGINT NOT NULL,
    claimed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    leased_until TIMESTAMP WITH TIME ZONE NOT NULL,
    acknowledged BOOLEAN DEFAULT false NOT NULL,
    consumer TEXT COLLATE "C",
    seqs BIGINT[] NOT NULL,
    sizes BIGINT[],
    episodes BIGINT[],
    group_by TEXT COLLATE "C",
    batch_id BIGINT,
    checkpoint BIGINT,
    CONSTRAINT pk_leases PRIMARY KEY (buffer_id, id)
);
CREATE INDEX ix_leases_consumer ON leases (buffer_id, consumer) WHERE consumer IS NOT NULL;
COMMENT ON COLUMN leases.buffer_id IS 'the buffer';
COMMENT ON COLUMN leases.id IS 'the lease';
COMMENT ON COLUMN leases.n_rows IS 'rows claimed';
COMMENT ON COLUMN leases.claimed_at IS 'time of the claim, or of the last renewal';
COMMENT ON COLUMN leases.leased_until IS 'time when it runs out; in 9999 if a checkpoint keeps its rows';
COMMENT ON COLUMN leases.acknowledged IS 'true after its uses were counted';
COMMENT ON COLUMN leases.consumer IS 'who leased it, where a name was given';
COMMENT ON COLUMN leases.seqs IS 'the rows, group by group';
COMMENT ON COLUMN leases.sizes IS 'rows of each group; null where single rows are leased';
COMMENT ON COLUMN leases.episodes IS 'episodes that its acknowledgement was the first to use; if kept';
COMMENT ON COLUMN leases.group_by IS 'what rows of a group share';
COMMENT ON COLUMN leases.batch_id IS 'its batch in the sample log';
COMMENT ON COLUMN leases.checkpoint IS 'number of the first checkpoint after it was acknowledged';

CREATE TABLE checkpoints (
    buffer_id INTEGER NOT NULL,
    consumer TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    states TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_checkpoints PRIMARY KEY (buffer_id, consumer, number)
);
CREATE UNIQUE INDEX uq_checkpoints_name ON checkpoints (buffer_id, consumer, name);
COMMENT ON COLUMN checkpoints.buffer_id IS 'the buffer';
COMMENT ON COLUMN checkpoints.consumer IS 'whose mark it is';
COMMENT ON COLUMN checkpoints.number IS 'order of its marks';
COMMENT ON COLUMN checkpoints.name IS 'name of the mark';
COMMENT ON COLUMN checkpoints.states IS 'states of loaders and samplers, as JSON';
COMMENT ON COLUMN checkpoints.created_at IS 'when';

CREATE TABLE labels (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    reward_t DOUBLE PRECISION,
    adv_t DOUBLE PRECISION,
    v_t DOUBLE PRECISION,
    extra JSONB,
    fields JSONB,
    CONSTRAINT pk_labels PRIMARY KEY (buffer_id, seq)
);
COMMENT ON COLUMN labels.buffer_id IS 'the buffer';
COMMENT ON COLUMN labels.seq IS 'the experience';
COMMENT ON COLUMN labels.reward_t IS 'reward given late';
COMMENT ON COLUMN labels.adv_t IS 'advantage given late';
COMMENT ON COLUMN labels.v_t IS 'value estimate given late';
COMMENT ON COLUMN labels.extra IS 'the row''s extra with the keys that were given late';
COMMENT ON COLUMN labels.fields IS 'declared fields that were given late';

CREATE TABLE label_history (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    version BIGINT NOT NULL,
    reward_t DOUBLE PRECISION,
    adv_t DOUBLE PRECISION,
    v_t DOUBLE PRECISION,
    extra JSONB,
    fields JSONB,
    labelled_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_label_history PRIMARY KEY (buffer_id, seq, version)
);
COMMENT ON COLUMN label_history.buffer_id IS 'the buffer';
COMMENT ON COLUMN label_history.seq IS 'the experience';
COMMENT ON COLUMN label_history.version IS 'number of the annotation; the highest one counts';
COMMENT ON COLUMN label_history.reward_t IS 'reward given';
COMMENT ON COLUMN label_history.adv_t IS 'advantage given';
COMMENT ON COLUMN label_history.v_t IS 'value estimate given';
COMMENT ON COLUMN label_history.extra IS 'keys of extra given';
COMMENT ON COLUMN label_history.fields IS 'declared fields given';
COMMENT ON COLUMN label_history.labelled_at IS 'when';

CREATE TABLE quarantine (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    reason TEXT,
    quarantined_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_quarantine PRIMARY KEY (buffer_id, seq)
);
COMMENT ON COLUMN quarantine.buffer_id IS 'the buffer';
COMMENT ON COLUMN quarantine.seq IS 'the experience';
COMMENT ON COLUMN quarantine.reason IS 'reason why it is not sampled';
COMMENT ON COLUMN quarantine.quarantined_at IS 'time of the quarantine';

CREATE SEQUENCE messages_id_seq AS INTEGER;

CREATE TABLE messages (
    buffer_id INTEGER NOT NULL,
    id INTEGER NOT NULL,
    hash BYTEA,
    content JSON NOT NULL,
    last_seq BIGINT NOT NULL,
    CONSTRAINT pk_messages PRIMARY KEY (buffer_id, id),
    CONSTRAINT uq_messages_buffer_id_hash UNIQUE (buffer_id, hash)
);

ALTER SEQUENCE messages_id_seq OWNED BY messages.id;
CREATE INDEX ix_messages_buffer_id_last_seq ON messages (buffer_id, last_seq);
COMMENT ON COLUMN messages.buffer_id IS 'the buffer';
COMMENT ON COLUMN messages.id IS 'number of the message';
COMMENT ON COLUMN messages.hash IS 'BLAKE2b of its JSON, 16 bytes; null: the row continues the one before (SQLite)';
COMMENT ON COLUMN messages.content IS 'the message, as JSON; on SQLite a long one has several rows';
COMMENT ON COLUMN messages.last_seq IS 'no step with a greater seq uses it';

CREATE TABLE payload_parts (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    part INTEGER NOT NULL,
    bytes BYTEA NOT NULL,
    CONSTRAINT pk_payload_parts PRIMARY KEY (buffer_id, seq, part)
);
COMMENT ON COLUMN payload_parts.buffer_id IS 'the buffer';
COMMENT ON COLUMN payload_parts.seq IS 'the experience';
COMMENT ON COLUMN payload_parts.part IS 'order of the part';
COMMENT ON COLUMN payload_parts.bytes IS 'content of the part';

CREATE TABLE payload_changes (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    fields TEXT NOT NULL,
    n_changes INTEGER NOT NULL,
    changed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_payload_changes PRIMARY KEY (buffer_id, seq)
);
COMMENT ON COLUMN payload_changes.buffer_id IS 'the buffer';
COMMENT ON COLUMN payload_changes.seq IS 'the experience';
COMMENT ON COLUMN payload_changes.fields IS 'fields that the last change wrote';
COMMENT ON COLUMN payload_changes.n_changes IS 'number of changes of the row';
COMMENT ON COLUMN payload_changes.changed_at IS 'time of the last change';

CREATE TABLE applied_writes (
    buffer_id INTEGER NOT NULL,
    write_id UUID NOT NULL,
    kept_until TIMESTAMP WITH TIME ZONE NOT NULL,
    first_seq BIGINT,
    CONSTRAINT pk_applied_writes PRIMARY KEY (buffer_id, write_id)
);
COMMENT ON COLUMN applied_writes.buffer_id IS 'the buffer';
COMMENT ON COLUMN applied_writes.write_id IS 'random id of the write';
COMMENT ON COLUMN applied_writes.kept_until IS 'no call looks for the id after this time';
COMMENT ON COLUMN applied_writes.first_seq IS 'first number of its steps; null if it stored no chunks';

CREATE TABLE change_log (
    id BIGSERIAL NOT NULL,
    buffer_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    xid XID8 DEFAULT pg_current_xact_id(),
    origin UUID,
    inserted_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    seqs BIGINT[],
    CONSTRAINT pk_change_log PRIMARY KEY (id),
    CONSTRAINT ck_change_log_kind_known CHECK (kind IN ('deleted', 'quarantined', 'labelled', 'replaced', 'priorities', 'episodes'))
);
CREATE INDEX ix_change_log_buffer_id_xid ON change_log (buffer_id, xid);
COMMENT ON COLUMN change_log.id IS 'number of the entry';
COMMENT ON COLUMN change_log.buffer_id IS 'the buffer';
COMMENT ON COLUMN change_log.kind IS 'deleted, quarantined (or released), labelled, replaced, priorities, or episodes';
COMMENT ON COLUMN change_log.xid IS 'transaction that wrote it (PostgreSQL; null on SQLite)';
COMMENT ON COLUMN change_log.origin IS 'random id of the opener that wrote it; null: plain SQL';
COMMENT ON COLUMN change_log.inserted_at IS 'when the entry was written';
COMMENT ON COLUMN change_log.seqs IS 'the rows; null: any, plain SQL deleted some (PostgreSQL); of kind episodes: their keys';

CREATE TABLE change_log_starts (
    buffer_id INTEGER NOT NULL,
    trimmed_id BIGINT,
    trimmed_snapshot TEXT,
    next_snapshot TEXT,
    noted_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_change_log_starts PRIMARY KEY (buffer_id)
);
COMMENT ON COLUMN change_log_starts.buffer_id IS 'the buffer';
COMMENT ON COLUMN change_log_starts.trimmed_id IS 'the last entry that was trimmed (SQLite)';
COMMENT ON COLUMN change_log_starts.trimmed_snapshot IS 'a snapshot that shows all trimmed entries (PostgreSQL)';
COMMENT ON COLUMN change_log_starts.next_snapshot IS 'entries that this snapshot shows are trimmed next (PostgreSQL)';
COMMENT ON COLUMN change_log_starts.noted_at IS 'time of next_snapshot (PostgreSQL)';

CREATE TABLE followers (
    buffer_id INTEGER NOT NULL,
    follower_id UUID NOT NULL,
    registered_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    live_until TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_followers PRIMARY KEY (buffer_id, follower_id)
);
COMMENT ON COLUMN followers.buffer_id IS 'the buffer';
COMMENT ON COLUMN followers.follower_id IS 'random id of the follower';
COMMENT ON COLUMN followers.registered_at IS 'time of the registration';
COMMENT ON COLUMN followers.live_until IS 'the follower is removed unless it renews this in time';

CREATE TABLE copies (
    buffer_id INTEGER NOT NULL,
    source_database TEXT NOT NULL,
    source_buffer TEXT COLLATE "C" NOT NULL,
    source_id INTEGER NOT NULL,
    source_created_at TEXT NOT NULL,
    condition TEXT,
    low_seq BIGINT NOT NULL,
    high_seq BIGINT NOT NULL,
    copied_seq BIGINT NOT NULL,
    n_steps BIGINT NOT NULL,
    n_read BIGINT NOT NULL,
    n_expected BIGINT,
    hold_id UUID,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_copies PRIMARY KEY (buffer_id)
);
COMMENT ON COLUMN copies.buffer_id IS 'the buffer';
COMMENT ON COLUMN copies.source_database IS 'URL of the source, no password';
COMMENT ON COLUMN copies.source_buffer IS 'name of the buffer that is copied';
COMMENT ON COLUMN copies.source_id IS 'buffer_id of the source, in its database';
COMMENT ON COLUMN copies.source_created_at IS 'when the source was created, UTC';
COMMENT ON COLUMN copies.condition IS 'condition of the copied steps; null: all';
COMMENT ON COLUMN copies.low_seq IS 'steps above this seq are copied';
COMMENT ON COLUMN copies.high_seq IS 'no step above this seq is copied';
COMMENT ON COLUMN copies.copied_seq IS 'steps up to this seq are copied';
COMMENT ON COLUMN copies.n_steps IS 'steps copied so far';
COMMENT ON COLUMN copies.n_read IS 'steps read so far, also those that do not match';
COMMENT ON COLUMN copies.n_expected IS 'steps to read, if whole tasks or episodes are evicted';
COMMENT ON COLUMN copies.hold_id IS 'its hold on the source; null if it has none';
COMMENT ON COLUMN copies.started_at IS 'time when it began';
COMMENT ON COLUMN copies.finished_at IS 'time when it was complete; null while it is not';

CREATE TABLE merges (
    buffer_id INTEGER NOT NULL,
    source UUID NOT NULL,
    prefix TEXT COLLATE "C" NOT NULL,
    source_database TEXT NOT NULL,
    source_buffer TEXT COLLATE "C" NOT NULL,
    condition TEXT,
    merged_seq BIGINT NOT NULL,
    high_seq BIGINT NOT NULL,
    newest JSONB,
    n_steps BIGINT NOT NULL,
    n_skipped BIGINT NOT NULL,
    episodes JSONB NOT NULL,
    merged_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_merges PRIMARY KEY (buffer_id, source, prefix)
);
COMMENT ON COLUMN merges.buffer_id IS 'the buffer';
COMMENT ON COLUMN merges.source IS 'uuid of the buffer that is merged';
COMMENT ON COLUMN merges.prefix IS 'text before the ids of its steps';
COMMENT ON COLUMN merges.source_database IS 'URL of the source, no password';
COMMENT ON COLUMN merges.source_buffer IS 'name of the buffer that is merged';
COMMENT ON COLUMN merges.condition IS 'condition of the merged steps; null: all';
COMMENT ON COLUMN merges.merged_seq IS 'steps up to this seq are merged';
COMMENT ON COLUMN merges.high_seq IS 'no step above this seq is merged';
COMMENT ON COLUMN merges.newest IS 'seq and mark of the newest step of the source at that time';
COMMENT ON COLUMN merges.n_steps IS 'steps merged so far';
COMMENT ON COLUMN merges.n_skipped IS 'steps left out, as their ids exist';
COMMENT ON COLUMN merges.episodes IS 'episodes that were open, that have ended since, and that are left out';
COMMENT ON COLUMN merges.merged_at IS 'last change';

CREATE TABLE group_stats (
    buffer_id INTEGER NOT NULL,
    group_id TEXT COLLATE "C" NOT NULL,
    n_rollouts BIGINT NOT NULL,
    n_rewards BIGINT NOT NULL,
    mean DOUBLE PRECISION,
    m2 DOUBLE PRECISION NOT NULL,
    min DOUBLE PRECISION,
    max DOUBLE PRECISION,
    spread DOUBLE PRECISION,
    CONSTRAINT pk_group_stats PRIMARY KEY (buffer_id, group_id)
);
CREATE INDEX ix_group_stats_buffer_id_spread_group_id ON group_stats (buffer_id, spread, group_id);
COMMENT ON COLUMN group_stats.buffer_id IS 'the buffer';
COMMENT ON COLUMN group_stats.group_id IS 'group_id of its episodes, or their task';
COMMENT ON COLUMN group_stats.n_rollouts IS 'its episodes, without aborted ones';
COMMENT ON COLUMN group_stats.n_rewards IS 'those with a finite reward: of the episode itself, or else the sum of its steps';
COMMENT ON COLUMN group_stats.mean IS 'mean of these rewards';
COMMENT ON COLUMN group_stats.m2 IS 'sum of their squared differences from the mean';
COMMENT ON COLUMN group_stats.min IS 'smallest of them';
COMMENT ON COLUMN group_stats.max IS 'largest of them';
COMMENT ON COLUMN group_stats.spread IS 'largest minus smallest; null if an episode has no such reward';

CREATE TABLE group_changes (
    id BIGSERIAL NOT NULL,
    buffer_id INTEGER NOT NULL,
    group_id TEXT COLLATE "C" NOT NULL,
    n_rollouts INTEGER,
    was DOUBLE PRECISION,
    now DOUBLE PRECISION,
    CONSTRAINT pk_group_changes PRIMARY KEY (id)
);
CREATE INDEX ix_group_changes_buffer_id_group_id ON group_changes (buffer_id, group_id);
COMMENT ON COLUMN group_changes.id IS 'key of the change';
COMMENT ON COLUMN group_changes.buffer_id IS 'the buffer';
COMMENT ON COLUMN group_changes.group_id IS 'the group';
COMMENT ON COLUMN group_changes.n_rollouts IS '1: an episode counts from now on; -1: no longer; 0: its reward changed; null: rewards of rows of this group or task in the queue may have changed';
COMMENT ON COLUMN group_changes.was IS 'its reward before; null if it had none';
COMMENT ON COLUMN group_changes.now IS 'its reward now; null if it has none';

CREATE TABLE queue_groups (
    buffer_id INTEGER NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    task_bound DOUBLE PRECISION DEFAULT 1e308 NOT NULL,
    group_bound DOUBLE PRECISION DEFAULT 1e308 NOT NULL,
    version BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_queue_groups PRIMARY KEY (buffer_id, key)
);
CREATE INDEX ix_queue_groups_buffer_id_group_bound_key ON queue_groups (buffer_id, group_bound, key);
CREATE INDEX ix_queue_groups_buffer_id_task_bound_key ON queue_groups (buffer_id, task_bound, key);
COMMENT ON COLUMN queue_groups.buffer_id IS 'the buffer';
COMMENT ON COLUMN queue_groups.key IS 'a task or a group of rows in the queue';
COMMENT ON COLUMN queue_groups.task_bound IS 'rewards of the rollouts of the task differ at most by this; 1e308: unknown; -1: no rollout waits';
COMMENT ON COLUMN queue_groups.group_bound IS 'the same of the group';
COMMENT ON COLUMN queue_groups.version IS 'differs after each change: the transaction on PostgreSQL';

CREATE TABLE rollout_stats (
    buffer_id INTEGER NOT NULL,
    task_id TEXT COLLATE "C" NOT NULL,
    episode_id BIGINT NOT NULL,
    part BIGINT DEFAULT 0 NOT NULL,
    length BIGINT NOT NULL,
    return DOUBLE PRECISION,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    group_id TEXT COLLATE "C" NOT NULL,
    reward DOUBLE PRECISION,
    is_aborted BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_rollout_stats PRIMARY KEY (buffer_id, task_id, episode_id, part)
);
CREATE INDEX ix_rollout_stats_buffer_id_first_seq ON rollout_stats (buffer_id, first_seq);
CREATE INDEX ix_rollout_stats_buffer_id_length_first_seq ON rollout_stats (buffer_id, length, first_seq);
CREATE INDEX ix_rollout_stats_group ON rollout_stats (buffer_id, group_id, coalesce(reward, return), first_seq);
CREATE INDEX ix_rollout_stats_reward ON rollout_stats (buffer_id, coalesce(reward, return), first_seq);
COMMENT ON COLUMN rollout_stats.buffer_id IS 'the buffer';
COMMENT ON COLUMN rollout_stats.task_id IS 'the task';
COMMENT ON COLUMN rollout_stats.episode_id IS 'number of the episode; 0: the steps of the task without an episode';
COMMENT ON COLUMN rollout_stats.part IS '0; for steps without an episode on PostgreSQL, a part of them: writers that write one task at the same time have a part each';
COMMENT ON COLUMN rollout_stats.length IS 'steps written, also those that were evicted';
COMMENT ON COLUMN rollout_stats."return" IS 'sum of their rewards, annotations applied; null if none has a reward';
COMMENT ON COLUMN rollout_stats.first_seq IS 'seq of the first step';
COMMENT ON COLUMN rollout_stats.last_seq IS 'seq of the last step';
COMMENT ON COLUMN rollout_stats.group_id IS 'its group: group_id of the episode, or else the task';
COMMENT ON COLUMN rollout_stats.reward IS 'reward of the episode itself';
COMMENT ON COLUMN rollout_stats.is_aborted IS 'true: the episode was aborted, and does not count in its group';

CREATE TABLE holds (
    buffer_id INTEGER NOT NULL,
    hold_id UUID NOT NULL,
    low_seq BIGINT NOT NULL,
    live_until TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_holds PRIMARY KEY (buffer_id, hold_id)
);
COMMENT ON COLUMN holds.buffer_id IS 'the buffer';
COMMENT ON COLUMN holds.hold_id IS 'random id of the hold';
COMMENT ON COLUMN holds.low_seq IS 'no step above this seq is evicted';
COMMENT ON COLUMN holds.live_until IS 'end of the hold, unless it is extended in time';

CREATE TABLE eviction_counts (
    buffer_id INTEGER NOT NULL,
    hour BIGINT NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    writer UUID NOT NULL,
    n_steps BIGINT NOT NULL,
    CONSTRAINT pk_eviction_counts PRIMARY KEY (buffer_id, hour, reason, writer)
);
COMMENT ON COLUMN eviction_counts.buffer_id IS 'the buffer';
COMMENT ON COLUMN eviction_counts.hour IS 'the hour, in hours since 1970';
COMMENT ON COLUMN eviction_counts.reason IS 'why the steps left';
COMMENT ON COLUMN eviction_counts.writer IS 'random id of the opener that counted; zeros: of all, in older hours';
COMMENT ON COLUMN eviction_counts.n_steps IS 'number of steps';

CREATE TABLE time_marks (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    n_bytes BIGINT,
    CONSTRAINT pk_time_marks PRIMARY KEY (buffer_id, seq)
);
COMMENT ON COLUMN time_marks.buffer_id IS 'the buffer';
COMMENT ON COLUMN time_marks.seq IS 'the newest seq at that time';
COMMENT ON COLUMN time_marks.at IS 'counted time then, in Unix seconds';
COMMENT ON COLUMN time_marks.n_bytes IS 'bytes of the steps since the mark before; null: not measured';
CREATE INDEX ix_time_marks_buffer_id_at ON time_marks (buffer_id, at);

CREATE TABLE clock_looks (
    buffer_id INTEGER NOT NULL,
    clock_id TEXT COLLATE "C" NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    clock_s DOUBLE PRECISION NOT NULL,
    counted_at DOUBLE PRECISION NOT NULL,
    CONSTRAINT pk_clock_looks PRIMARY KEY (buffer_id, clock_id)
);
COMMENT ON COLUMN clock_looks.buffer_id IS 'the buffer';
COMMENT ON COLUMN clock_looks.clock_id IS 'a monotonic clock: that of a machine since it started, or of a process';
COMMENT ON COLUMN clock_looks.at IS 'time of the database''s clock, in Unix seconds';
COMMENT ON COLUMN clock_looks.clock_s IS 'time of the monotonic clock at that moment, in seconds';
COMMENT ON COLUMN clock_looks.counted_at IS 'counted time at that moment';

CREATE TABLE retention_states (
    buffer_id INTEGER NOT NULL,
    looked_at DOUBLE PRECISION NOT NULL,
    low_seq BIGINT NOT NULL,
    high_seq BIGINT NOT NULL,
    live_rows BIGINT NOT NULL,
    n_left BIGINT NOT NULL,
    counted_at DOUBLE PRECISION,
    unseen_s DOUBLE PRECISION DEFAULT 0 NOT NULL,
    moved_s DOUBLE PRECISION DEFAULT 0 NOT NULL,
    bytes_seq BIGINT,
    CONSTRAINT pk_retention_states PRIMARY KEY (buffer_id)
);
COMMENT ON COLUMN retention_states.buffer_id IS 'the buffer';
COMMENT ON COLUMN retention_states.looked_at IS 'time of the last sweep by the database''s clock, in Unix seconds';
COMMENT ON COLUMN retention_states.low_seq IS 'lower end of the window at the last sweep';
COMMENT ON COLUMN retention_states.high_seq IS 'newest seq at the last sweep';
COMMENT ON COLUMN retention_states.live_rows IS 'rows held at the last sweep, if eviction is by task or episode';
COMMENT ON COLUMN retention_states.n_left IS 'rows that had left for other reasons than capacity then';
COMMENT ON COLUMN retention_states.counted_at IS 'counted time at the last sweep, in Unix seconds';
COMMENT ON COLUMN retention_states.unseen_s IS 'seconds that passed by the database''s clock and do not count: no machine saw them';
COMMENT ON COLUMN retention_states.moved_s IS 'seconds that the database''s clock was set by, as machines saw';
COMMENT ON COLUMN retention_states.bytes_seq IS 'tasks or episodes whose steps end up to this seq leave for the size; null: none';

CREATE TABLE rank_agreements (
    buffer_id INTEGER NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    value TEXT NOT NULL,
    agreed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_rank_agreements PRIMARY KEY (buffer_id, topic, name)
);
COMMENT ON COLUMN rank_agreements.buffer_id IS 'the buffer';
COMMENT ON COLUMN rank_agreements.topic IS 'loader, or iteration, of several ranks';
COMMENT ON COLUMN rank_agreements.name IS 'what they agree on';
COMMENT ON COLUMN rank_agreements.value IS 'the value that all ranks use, as JSON';
COMMENT ON COLUMN rank_agreements.agreed_at IS 'when it was written or used last';

CREATE TABLE documents (
    buffer_id INTEGER NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    value JSONB NOT NULL,
    changed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_documents PRIMARY KEY (buffer_id, key)
);
COMMENT ON COLUMN documents.buffer_id IS 'the buffer';
COMMENT ON COLUMN documents.key IS 'name of the document';
COMMENT ON COLUMN documents.version IS '1, and one more with each change';
COMMENT ON COLUMN documents.value IS 'its value';
COMMENT ON COLUMN documents.changed_at IS 'when it was written last';

CREATE TABLE schema_info (
    min_client TEXT NOT NULL,
    CONSTRAINT pk_schema_info PRIMARY KEY (min_client)
);
COMMENT ON COLUMN schema_info.min_client IS 'the oldest revision whose package may use this schema';

CREATE TABLE maintenance (
    task TEXT NOT NULL,
    holder TEXT,
    leased_until TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_maintenance PRIMARY KEY (task)
);
COMMENT ON COLUMN maintenance.task IS 'task that one process at a time runs';
COMMENT ON COLUMN maintenance.holder IS 'the process that ran it last';
COMMENT ON COLUMN maintenance.leased_until IS 'no other process starts it before this time';

-- Arrays do not compress; with EXTERNAL a part of them can be read.
ALTER TABLE experiences ALTER COLUMN arrays SET STORAGE EXTERNAL;
ALTER TABLE payload_parts ALTER COLUMN bytes SET STORAGE EXTERNAL;
ALTER TABLE chunk_data ALTER COLUMN rewards SET STORAGE EXTERNAL;
ALTER TABLE chunk_data ALTER COLUMN records SET STORAGE EXTERNAL;
ALTER TABLE chunk_data ALTER COLUMN payload_arrays SET STORAGE EXTERNAL;
-- A server may be built without lz4.
DO $$ BEGIN ALTER TABLE messages ALTER COLUMN content SET COMPRESSION lz4; EXCEPTION WHEN feature_not_supported THEN NULL; END $$;
ALTER TABLE chunks ALTER COLUMN times SET STORAGE EXTERNAL;
ALTER TABLE chunks ALTER COLUMN reward_t SET STORAGE EXTERNAL;
ALTER TABLE chunks ALTER COLUMN adv_t SET STORAGE EXTERNAL;
ALTER TABLE chunks ALTER COLUMN v_t SET STORAGE EXTERNAL;
-- Numbers of a thousand deleted steps take 0.15 ms in place of 0.8, and 8 KB in place of 3, until they
-- are trimmed.
ALTER TABLE change_log ALTER COLUMN seqs SET STORAGE EXTERNAL;
ALTER TABLE chunks ALTER COLUMN initial_priority SET STORAGE EXTERNAL;
-- With 4,080 bytes a row of 2,048 bytes of rewards keeps them: a batch reads one value less for
-- each step.
ALTER TABLE chunk_data SET (toast_tuple_target = 4080);

-- A claim and its acknowledgement find space for the row's new versions on its page.
ALTER TABLE queue_items SET (fillfactor = 50);
ALTER TABLE leases SET (fillfactor = 50);
ALTER TABLE work_items SET (fillfactor = 50);

-- For roles without the right to VACUUM; see sqlbuffer/storage/database/vacuum.py.
ALTER TABLE experiences SET (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02, vacuum_truncate = off
);
ALTER TABLE chunks SET (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02, vacuum_truncate = off
);
ALTER TABLE chunk_data SET (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02, vacuum_truncate = off
);

-- A new buffer is not in the statistics yet. With them the planner expects one of its rows from any
-- index, and reads all its rows to find a few. Without them it expects some rows of each buffer.
ALTER TABLE experiences ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE chunks ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE chunk_data ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE step_ids ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE deleted_steps ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE replaced_steps ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE episodes ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE work_items ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE sessions ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE tasks ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE priorities ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE priority_blocks ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE row_blocks ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE uses ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE samples ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE flow ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE flow_waits ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE flow_history ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE queue_items ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE checkpoints ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE leases ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE labels ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE label_history ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE quarantine ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE payload_parts ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE messages ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE payload_changes ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE applied_writes ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE change_log ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE change_log_starts ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE followers ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE copies ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE holds ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE rank_agreements ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE documents ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE group_stats ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE group_changes ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE queue_groups ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE rollout_stats ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE merges ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE eviction_counts ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE time_marks ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE clock_looks ALTER COLUMN buffer_id SET STATISTICS 0;
ALTER TABLE retention_states ALTER COLUMN buffer_id SET STATISTICS 0;

-- For the same reason: a new buffer may have episodes although the others have none.
ALTER TABLE experiences ALTER COLUMN episode_id SET STATISTICS 0;
ALTER TABLE chunks ALTER COLUMN episode_id SET STATISTICS 0;

INSERT INTO schema_info (min_client) VALUES ('0001');

INSERT INTO chunk_places (place, path) SELECT n, '$[' || n || ']' FROM generate_series(0, 255) AS g(n);

INSERT INTO maintenance (task) VALUES ('vacuum'), ('analyze'), ('forget writes');
