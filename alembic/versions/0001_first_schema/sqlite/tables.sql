CREATE TABLE buffers (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    layout TEXT,
    max_capacity BIGINT,
    max_episodes BIGINT,
    max_age_s DOUBLE,
    max_bytes BIGINT,
    evict_unit TEXT DEFAULT 'row' NOT NULL,
    alpha DOUBLE,
    max_priority DOUBLE,
    block_size INTEGER DEFAULT 256 NOT NULL,
    clock BIGINT,
    session_id INTEGER,
    flow TEXT,
    low_seq BIGINT DEFAULT 0 NOT NULL,
    clean_seq BIGINT DEFAULT 0 NOT NULL,
    next_seq BIGINT DEFAULT 1 NOT NULL,
    live_rows BIGINT DEFAULT 0 NOT NULL,
    live_episodes BIGINT DEFAULT 0 NOT NULL,
    keep_episodes BIGINT DEFAULT 1000000 NOT NULL,
    open_timeout_s DOUBLE DEFAULT 3600 NOT NULL,
    deletions BIGINT DEFAULT 0 NOT NULL,
    is_deleting BOOLEAN DEFAULT 0 NOT NULL,
    n_expired BIGINT DEFAULT 0 NOT NULL,
    n_used_up BIGINT DEFAULT 0 NOT NULL,
    n_other_session BIGINT DEFAULT 0 NOT NULL,
    n_partial BIGINT DEFAULT 0 NOT NULL,
    n_flat BIGINT DEFAULT 0 NOT NULL,
    created_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    n_added INTEGER DEFAULT 0 NOT NULL,
    field_defaults TEXT,
    uuid TEXT DEFAULT (lower(hex(randomblob(16)))) NOT NULL,
    config TEXT DEFAULT '{}' NOT NULL,
    has_uses BOOLEAN DEFAULT 0 NOT NULL,
    has_quarantine BOOLEAN DEFAULT 0 NOT NULL,
    has_labels BOOLEAN DEFAULT 0 NOT NULL,
    has_queue BOOLEAN DEFAULT 0 NOT NULL,
    has_priorities BOOLEAN DEFAULT 0 NOT NULL,
    has_parts BOOLEAN DEFAULT 0 NOT NULL,
    has_messages BOOLEAN DEFAULT 0 NOT NULL,
    has_changes BOOLEAN DEFAULT 0 NOT NULL,
    has_chunks BOOLEAN DEFAULT 0 NOT NULL,
    has_step_ids BOOLEAN DEFAULT 0 NOT NULL,
    has_deleted BOOLEAN DEFAULT 0 NOT NULL,
    has_followers BOOLEAN DEFAULT 0 NOT NULL,
    is_copying BOOLEAN DEFAULT 0 NOT NULL,
    has_holds BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT ck_buffers_max_capacity_positive CHECK (max_capacity > 0),
    CONSTRAINT ck_buffers_max_episodes_positive CHECK (max_episodes > 0),
    CONSTRAINT ck_buffers_evict_unit_known CHECK (evict_unit IN ('row', 'task', 'episode')),
    CONSTRAINT uq_buffers_name UNIQUE (name)
);

CREATE TABLE experiences (
    "key" INTEGER NOT NULL PRIMARY KEY,
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    id TEXT,
    task_id TEXT NOT NULL,
    task_name TEXT,
    agent_id TEXT NOT NULL,
    pre_agent TEXT,
    step BIGINT NOT NULL,
    execute_time DOUBLE,
    episode_id BIGINT,
    t INTEGER,
    session_id INTEGER,
    state TEXT,
    actions TEXT,
    messages TEXT,
    message_ids TEXT,
    extra TEXT,
    fields TEXT,
    reward_t DOUBLE,
    adv_t DOUBLE,
    v_t DOUBLE,
    terminated BOOLEAN,
    truncated BOOLEAN,
    model_version BIGINT,
    initial_priority DOUBLE,
    arrays BLOB,
    payload_bytes BIGINT,
    inserted_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    CONSTRAINT ck_experiences_key_of_number CHECK ("key" = (buffer_id << 40 | seq)),
    CONSTRAINT ck_experiences_number_has_40_bits CHECK (seq > 0 AND seq < 1099511627776)
);
CREATE INDEX ix_experiences_buffer_id_episode_id_t ON experiences (buffer_id, episode_id, t) WHERE episode_id IS NOT NULL;
CREATE INDEX ix_experiences_buffer_id_task_id_agent_id_step ON experiences (buffer_id, task_id, agent_id, step);

CREATE UNIQUE INDEX uq_experiences_buffer_id_seq ON experiences (buffer_id, seq);
CREATE UNIQUE INDEX uq_experiences_buffer_id_id ON experiences (buffer_id, id) WHERE id IS NOT NULL;

CREATE TABLE chunks (
    "key" INTEGER NOT NULL PRIMARY KEY,
    buffer_id INTEGER NOT NULL,
    first_seq BIGINT NOT NULL,
    n_steps INTEGER NOT NULL,
    id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    task_name TEXT,
    agent_id TEXT NOT NULL,
    pre_agent TEXT,
    episode_id BIGINT,
    t INTEGER,
    step BIGINT NOT NULL,
    steps TEXT,
    session_id INTEGER,
    model_version BIGINT,
    first_time DOUBLE,
    last_time DOUBLE,
    times TEXT,
    reward_t TEXT,
    adv_t TEXT,
    v_t TEXT,
    terminated TEXT,
    truncated TEXT,
    initial_priority TEXT,
    fields TEXT,
    inserted_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    xid BIGINT DEFAULT NULL,
    CONSTRAINT ck_chunks_key_of_number CHECK ("key" = (buffer_id << 40 | first_seq)),
    CONSTRAINT ck_chunks_number_has_40_bits CHECK (first_seq > 0 AND first_seq < 1099511627776),
    CONSTRAINT ck_chunks_n_steps_known CHECK (n_steps BETWEEN 1 AND 256)
);

CREATE INDEX ix_chunks_buffer_id_episode_id_t ON chunks (buffer_id, episode_id, t) WHERE episode_id IS NOT NULL;
CREATE INDEX ix_chunks_buffer_id_first_seq_n_steps ON chunks (buffer_id, first_seq, n_steps);
CREATE INDEX ix_chunks_buffer_id_first_seq_no_episode ON chunks (buffer_id, first_seq) WHERE episode_id IS NULL;
CREATE INDEX ix_chunks_buffer_id_task_id_agent_id ON chunks (buffer_id, task_id, agent_id);
CREATE INDEX ix_chunks_buffer_id_xid ON chunks (buffer_id, xid) WHERE xid IS NOT NULL;
CREATE UNIQUE INDEX uq_chunks_buffer_id_id ON chunks (buffer_id, id);

CREATE TABLE chunk_data (
    "key" INTEGER NOT NULL PRIMARY KEY,
    buffer_id INTEGER NOT NULL,
    first_seq BIGINT NOT NULL,
    n_steps INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    step BIGINT NOT NULL,
    steps TEXT,
    episode_id BIGINT,
    t INTEGER,
    block_steps INTEGER NOT NULL,
    layout INTEGER DEFAULT 0 NOT NULL,
    offsets TEXT,
    rewards BLOB,
    ends BLOB,
    records BLOB NOT NULL,
    payloads TEXT,
    payload_arrays BLOB,
    CONSTRAINT ck_chunk_data_key_of_number CHECK ("key" = (buffer_id << 40 | first_seq)),
    CONSTRAINT ck_chunk_data_number_has_40_bits CHECK (first_seq > 0 AND first_seq < 1099511627776)
);

CREATE TABLE chunk_places (
    place INTEGER NOT NULL,
    path TEXT NOT NULL,
    CONSTRAINT pk_chunk_places PRIMARY KEY (place)
);

CREATE TABLE step_ids (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    id TEXT NOT NULL,
    CONSTRAINT pk_step_ids PRIMARY KEY (buffer_id, seq),
    CONSTRAINT uq_step_ids_buffer_id_id UNIQUE (buffer_id, id)
);

CREATE TABLE deleted_steps (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    CONSTRAINT pk_deleted_steps PRIMARY KEY (buffer_id, seq)
) WITHOUT ROWID;

CREATE TABLE replaced_steps (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    record BLOB NOT NULL,
    fields TEXT,
    reward_t DOUBLE,
    terminated BOOLEAN,
    truncated BOOLEAN,
    CONSTRAINT pk_replaced_steps PRIMARY KEY (buffer_id, seq)
);

CREATE TABLE episodes (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    buffer_id INTEGER NOT NULL,
    "key" TEXT NOT NULL,
    task_id TEXT NOT NULL,
    agent_id TEXT,
    group_id TEXT,
    parent_id TEXT,
    status TEXT DEFAULT 'open' NOT NULL,
    length INTEGER,
    return DOUBLE,
    reward DOUBLE,
    first_seq BIGINT,
    last_seq BIGINT,
    model_version BIGINT,
    meta TEXT,
    final_arrays BLOB,
    started_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    ended_at TEXT,
    n_rows BIGINT,
    next_t BIGINT DEFAULT 0 NOT NULL,
    is_implied BOOLEAN DEFAULT 0 NOT NULL,
    by_arrival BOOLEAN DEFAULT 0 NOT NULL,
    was_used BOOLEAN DEFAULT 0 NOT NULL,
    attempt INTEGER DEFAULT 0 NOT NULL,
    writer TEXT,
    writers TEXT,
    verdicts TEXT,
    used_at TEXT,
    item_id BIGINT,
    CONSTRAINT uq_episodes_buffer_id_key_task_id UNIQUE (buffer_id, "key", task_id),
    CONSTRAINT ck_episodes_status_known CHECK (status IN ('open', 'complete', 'aborted')),
    CONSTRAINT ck_episodes_parent_is_another CHECK (parent_id != "key")
);
CREATE INDEX ix_episodes_buffer_id_id ON episodes (buffer_id, id);
CREATE INDEX ix_episodes_buffer_id_last_seq ON episodes (buffer_id, last_seq);
CREATE INDEX ix_episodes_parent ON episodes (buffer_id, parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX ix_episodes_held ON episodes (buffer_id, id) WHERE n_rows > 0;

CREATE TABLE work_items (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    buffer_id INTEGER NOT NULL,
    group_id TEXT NOT NULL,
    sibling INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    payload TEXT,
    status TEXT DEFAULT 'waiting' NOT NULL,
    attempt INTEGER DEFAULT 0 NOT NULL,
    max_attempts INTEGER,
    worker TEXT,
    leased_until TEXT,
    episode_id TEXT,
    reason TEXT,
    is_consumed BOOLEAN DEFAULT 0 NOT NULL,
    created_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    taken_at TEXT,
    ended_at TEXT,
    CONSTRAINT uq_work_items_buffer_id_group_id_sibling UNIQUE (buffer_id, group_id, sibling),
    CONSTRAINT ck_work_items_status_known CHECK (status IN ('waiting', 'taken', 'done', 'failed'))
);
CREATE INDEX ix_work_items_waiting ON work_items (buffer_id, id) WHERE status = 'waiting';
CREATE INDEX ix_work_items_taken ON work_items (buffer_id, leased_until) WHERE status = 'taken';
CREATE INDEX ix_work_items_stored ON work_items (buffer_id, id) WHERE status = 'done' AND NOT is_consumed;

CREATE TABLE sessions (
    id INTEGER NOT NULL,
    buffer_id INTEGER NOT NULL,
    "key" TEXT NOT NULL,
    current_version BIGINT,
    CONSTRAINT pk_sessions PRIMARY KEY (id),
    CONSTRAINT uq_sessions_buffer_id_key UNIQUE (buffer_id, "key")
);

CREATE TABLE tasks (
    buffer_id INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    n_rows BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    CONSTRAINT pk_tasks PRIMARY KEY (buffer_id, task_id)
);
CREATE INDEX ix_tasks_buffer_id_last_seq ON tasks (buffer_id, last_seq);

CREATE TABLE priorities (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    priority DOUBLE NOT NULL,
    CONSTRAINT pk_priorities PRIMARY KEY (buffer_id, seq)
);

CREATE TABLE priority_blocks (
    buffer_id INTEGER NOT NULL,
    block BIGINT NOT NULL,
    n_rows INTEGER NOT NULL,
    weight_sum DOUBLE NOT NULL,
    max_priority DOUBLE NOT NULL,
    min_priority DOUBLE,
    max_is_upper_bound BOOLEAN DEFAULT 0 NOT NULL,
    min_is_lower_bound BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_priority_blocks PRIMARY KEY (buffer_id, block)
)
 WITHOUT ROWID;

CREATE TABLE row_blocks (
    buffer_id INTEGER NOT NULL,
    block BIGINT NOT NULL,
    n_rows INTEGER NOT NULL,
    CONSTRAINT pk_row_blocks PRIMARY KEY (buffer_id, block)
)
 WITHOUT ROWID;

CREATE TABLE uses (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    n_uses INTEGER NOT NULL,
    CONSTRAINT pk_uses PRIMARY KEY (buffer_id, seq)
)
 WITHOUT ROWID;

CREATE TABLE samples (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    buffer_id INTEGER NOT NULL,
    clock BIGINT,
    sampler TEXT NOT NULL,
    seed TEXT,
    n_rows INTEGER NOT NULL,
    seqs TEXT NOT NULL,
    probabilities TEXT,
    model_versions TEXT,
    sampled_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    consumer TEXT,
    undone BOOLEAN DEFAULT 0 NOT NULL
);
CREATE INDEX ix_samples_buffer_id_clock ON samples (buffer_id, clock);
CREATE INDEX ix_samples_buffer_id_sampled_at ON samples (buffer_id, sampled_at);

CREATE TABLE flow (
    buffer_id INTEGER NOT NULL,
    holder TEXT NOT NULL,
    n_sampled BIGINT NOT NULL,
    n_batches BIGINT NOT NULL,
    n_limited BIGINT NOT NULL,
    pushed DOUBLE NOT NULL,
    sampled DOUBLE NOT NULL,
    decayed_at TEXT,
    heartbeat_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    CONSTRAINT pk_flow PRIMARY KEY (buffer_id, holder)
);

CREATE TABLE flow_waits (
    buffer_id INTEGER NOT NULL,
    holder TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    role TEXT NOT NULL,
    n_rows BIGINT NOT NULL,
    waiting_since TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    heartbeat_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    CONSTRAINT pk_flow_waits PRIMARY KEY (buffer_id, holder)
);

CREATE TABLE flow_history (
    buffer_id INTEGER NOT NULL,
    bucket BIGINT NOT NULL,
    holder TEXT NOT NULL,
    n_sampled BIGINT NOT NULL,
    n_batches BIGINT NOT NULL,
    CONSTRAINT pk_flow_history PRIMARY KEY (buffer_id, bucket, holder)
);

CREATE TABLE queue_items (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    task_id TEXT NOT NULL,
    group_id TEXT NOT NULL,
    episode_id BIGINT,
    model_version BIGINT,
    session_id INTEGER,
    freshness BIGINT NOT NULL,
    n_uses INTEGER DEFAULT 0 NOT NULL,
    used_up BOOLEAN DEFAULT 0 NOT NULL,
    lease_id TEXT,
    leased_until TEXT,
    group_seq BIGINT,
    inserted_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    CONSTRAINT pk_queue_items PRIMARY KEY (buffer_id, seq)
);
CREATE INDEX ix_queue_items_buffer_id_episode_id ON queue_items (buffer_id, episode_id) WHERE episode_id IS NOT NULL;
CREATE INDEX ix_queue_items_buffer_id_group_id ON queue_items (buffer_id, group_id);
CREATE INDEX ix_queue_items_buffer_id_task_id ON queue_items (buffer_id, task_id);
CREATE INDEX ix_queue_items_freshness ON queue_items (buffer_id, freshness, seq) WHERE used_up = 0;
CREATE INDEX ix_queue_items_used_up ON queue_items (buffer_id, seq) WHERE used_up = 1 AND leased_until IS NULL;
CREATE INDEX ix_queue_items_uses ON queue_items (buffer_id, n_uses, seq) WHERE used_up = 0;

CREATE TABLE leases (
    buffer_id INTEGER NOT NULL,
    id TEXT NOT NULL,
    n_rows BIGINT NOT NULL,
    claimed_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    leased_until TEXT NOT NULL,
    acknowledged BOOLEAN DEFAULT 0 NOT NULL,
    consumer TEXT,
    seqs TEXT NOT NULL,
    sizes TEXT,
    episodes TEXT,
    group_by TEXT,
    batch_id BIGINT,
    checkpoint BIGINT,
    CONSTRAINT pk_leases PRIMARY KEY (buffer_id, id)
);
CREATE INDEX ix_leases_consumer ON leases (buffer_id, consumer) WHERE consumer IS NOT NULL;

CREATE TABLE checkpoints (
    buffer_id INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    number BIGINT NOT NULL,
    name TEXT NOT NULL,
    states TEXT NOT NULL,
    created_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    CONSTRAINT pk_checkpoints PRIMARY KEY (buffer_id, consumer, number)
);
CREATE UNIQUE INDEX uq_checkpoints_name ON checkpoints (buffer_id, consumer, name);

CREATE TABLE labels (
    "key" INTEGER NOT NULL PRIMARY KEY,
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    reward_t DOUBLE,
    adv_t DOUBLE,
    v_t DOUBLE,
    extra TEXT,
    fields TEXT,
    CONSTRAINT ck_labels_key_of_number CHECK ("key" = (buffer_id << 40 | seq)),
    CONSTRAINT ck_labels_number_has_40_bits CHECK (seq > 0 AND seq < 1099511627776)
);

CREATE TABLE label_history (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    version BIGINT NOT NULL,
    reward_t DOUBLE,
    adv_t DOUBLE,
    v_t DOUBLE,
    extra TEXT,
    fields TEXT,
    labelled_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    CONSTRAINT pk_label_history PRIMARY KEY (buffer_id, seq, version)
);

CREATE TABLE quarantine (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    reason TEXT,
    quarantined_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    CONSTRAINT pk_quarantine PRIMARY KEY (buffer_id, seq)
) WITHOUT ROWID;

CREATE TABLE messages (
    buffer_id INTEGER NOT NULL,
    id INTEGER NOT NULL,
    hash BLOB,
    content TEXT NOT NULL,
    last_seq BIGINT NOT NULL,
    CONSTRAINT pk_messages PRIMARY KEY (buffer_id, id),
    CONSTRAINT uq_messages_buffer_id_hash UNIQUE (buffer_id, hash)
);
CREATE INDEX ix_messages_buffer_id_last_seq ON messages (buffer_id, last_seq);

CREATE TABLE payload_parts (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    part INTEGER NOT NULL,
    bytes BLOB NOT NULL,
    CONSTRAINT pk_payload_parts PRIMARY KEY (buffer_id, seq, part)
);

CREATE TABLE payload_changes (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    fields TEXT NOT NULL,
    n_changes INTEGER NOT NULL,
    changed_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    CONSTRAINT pk_payload_changes PRIMARY KEY (buffer_id, seq)
);

CREATE TABLE applied_writes (
    buffer_id INTEGER NOT NULL,
    write_id TEXT NOT NULL,
    kept_until TEXT NOT NULL,
    first_seq BIGINT,
    CONSTRAINT pk_applied_writes PRIMARY KEY (buffer_id, write_id)
);

CREATE TABLE change_log (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    buffer_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    xid BIGINT DEFAULT NULL,
    origin TEXT,
    inserted_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    seqs TEXT,
    CONSTRAINT ck_change_log_kind_known CHECK (kind IN ('deleted', 'quarantined', 'labelled', 'replaced', 'priorities', 'episodes'))
);
CREATE INDEX ix_change_log_buffer_id_xid ON change_log (buffer_id, xid) WHERE xid IS NOT NULL;

CREATE TABLE change_log_starts (
    buffer_id INTEGER NOT NULL,
    trimmed_id BIGINT,
    trimmed_snapshot TEXT,
    next_snapshot TEXT,
    noted_at TEXT,
    CONSTRAINT pk_change_log_starts PRIMARY KEY (buffer_id)
);

CREATE TABLE followers (
    buffer_id INTEGER NOT NULL,
    follower_id TEXT NOT NULL,
    registered_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    live_until TEXT NOT NULL,
    CONSTRAINT pk_followers PRIMARY KEY (buffer_id, follower_id)
);

CREATE TABLE copies (
    buffer_id INTEGER NOT NULL,
    source_database TEXT NOT NULL,
    source_buffer TEXT NOT NULL,
    source_id INTEGER NOT NULL,
    source_created_at TEXT NOT NULL,
    condition TEXT,
    low_seq BIGINT NOT NULL,
    high_seq BIGINT NOT NULL,
    copied_seq BIGINT NOT NULL,
    n_steps BIGINT NOT NULL,
    n_read BIGINT NOT NULL,
    n_expected BIGINT,
    hold_id TEXT,
    started_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    finished_at TEXT,
    CONSTRAINT pk_copies PRIMARY KEY (buffer_id)
);

CREATE TABLE merges (
    buffer_id INTEGER NOT NULL,
    source TEXT NOT NULL,
    prefix TEXT NOT NULL,
    source_database TEXT NOT NULL,
    source_buffer TEXT NOT NULL,
    condition TEXT,
    merged_seq BIGINT NOT NULL,
    high_seq BIGINT NOT NULL,
    newest TEXT,
    n_steps BIGINT NOT NULL,
    n_skipped BIGINT NOT NULL,
    episodes TEXT NOT NULL,
    merged_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    CONSTRAINT pk_merges PRIMARY KEY (buffer_id, source, prefix)
);

CREATE TABLE group_stats (
    buffer_id INTEGER NOT NULL,
    group_id TEXT NOT NULL,
    n_rollouts BIGINT NOT NULL,
    n_rewards BIGINT NOT NULL,
    mean DOUBLE,
    m2 DOUBLE NOT NULL,
    min DOUBLE,
    max DOUBLE,
    spread DOUBLE,
    CONSTRAINT pk_group_stats PRIMARY KEY (buffer_id, group_id)
);
CREATE INDEX ix_group_stats_buffer_id_spread_group_id ON group_stats (buffer_id, spread, group_id);

CREATE TABLE group_changes (
    id INTEGER NOT NULL,
    buffer_id INTEGER NOT NULL,
    group_id TEXT NOT NULL,
    n_rollouts INTEGER,
    was DOUBLE,
    now DOUBLE,
    CONSTRAINT pk_group_changes PRIMARY KEY (id)
);
CREATE INDEX ix_group_changes_buffer_id_group_id ON group_changes (buffer_id, group_id);

CREATE TABLE queue_groups (
    buffer_id INTEGER NOT NULL,
    key TEXT NOT NULL,
    task_bound DOUBLE DEFAULT 1e308 NOT NULL,
    group_bound DOUBLE DEFAULT 1e308 NOT NULL,
    version BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT pk_queue_groups PRIMARY KEY (buffer_id, key)
);
CREATE INDEX ix_queue_groups_buffer_id_group_bound_key ON queue_groups (buffer_id, group_bound, key);
CREATE INDEX ix_queue_groups_buffer_id_task_bound_key ON queue_groups (buffer_id, task_bound, key);

CREATE TABLE rollout_stats (
    buffer_id INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    episode_id BIGINT NOT NULL,
    part BIGINT DEFAULT 0 NOT NULL,
    length BIGINT NOT NULL,
    return DOUBLE,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    group_id TEXT NOT NULL,
    reward DOUBLE,
    is_aborted BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_rollout_stats PRIMARY KEY (buffer_id, task_id, episode_id, part)
);
CREATE INDEX ix_rollout_stats_buffer_id_first_seq ON rollout_stats (buffer_id, first_seq);
CREATE INDEX ix_rollout_stats_buffer_id_length_first_seq ON rollout_stats (buffer_id, length, first_seq);
CREATE INDEX ix_rollout_stats_group ON rollout_stats (buffer_id, group_id, coalesce(reward, return), first_seq);
CREATE INDEX ix_rollout_stats_reward ON rollout_stats (buffer_id, coalesce(reward, return), first_seq);

CREATE TABLE holds (
    buffer_id INTEGER NOT NULL,
    hold_id TEXT NOT NULL,
    low_seq BIGINT NOT NULL,
    live_until TEXT NOT NULL,
    CONSTRAINT pk_holds PRIMARY KEY (buffer_id, hold_id)
);

CREATE TABLE eviction_counts (
    buffer_id INTEGER NOT NULL,
    hour BIGINT NOT NULL,
    reason TEXT NOT NULL,
    writer TEXT NOT NULL,
    n_steps BIGINT NOT NULL,
    CONSTRAINT pk_eviction_counts PRIMARY KEY (buffer_id, hour, reason, writer)
);

CREATE TABLE time_marks (
    buffer_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    at DOUBLE NOT NULL,
    n_bytes BIGINT,
    CONSTRAINT pk_time_marks PRIMARY KEY (buffer_id, seq)
);
CREATE INDEX ix_time_marks_buffer_id_at ON time_marks (buffer_id, at);

CREATE TABLE clock_looks (
    buffer_id INTEGER NOT NULL,
    clock_id TEXT NOT NULL,
    at DOUBLE NOT NULL,
    clock_s DOUBLE NOT NULL,
    counted_at DOUBLE NOT NULL,
    CONSTRAINT pk_clock_looks PRIMARY KEY (buffer_id, clock_id)
);

CREATE TABLE retention_states (
    buffer_id INTEGER NOT NULL,
    looked_at DOUBLE NOT NULL,
    low_seq BIGINT NOT NULL,
    high_seq BIGINT NOT NULL,
    live_rows BIGINT NOT NULL,
    n_left BIGINT NOT NULL,
    counted_at DOUBLE,
    unseen_s DOUBLE DEFAULT 0 NOT NULL,
    moved_s DOUBLE DEFAULT 0 NOT NULL,
    bytes_seq BIGINT,
    CONSTRAINT pk_retention_states PRIMARY KEY (buffer_id)
);

CREATE TABLE rank_agreements (
    buffer_id INTEGER NOT NULL,
    topic TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    agreed_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    CONSTRAINT pk_rank_agreements PRIMARY KEY (buffer_id, topic, name)
);

CREATE TABLE documents (
    buffer_id INTEGER NOT NULL,
    "key" TEXT NOT NULL,
    version BIGINT NOT NULL,
    value TEXT NOT NULL,
    changed_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) NOT NULL,
    CONSTRAINT pk_documents PRIMARY KEY (buffer_id, "key")
);

CREATE TABLE schema_info (
    min_client TEXT NOT NULL,
    CONSTRAINT pk_schema_info PRIMARY KEY (min_client)
);

CREATE TABLE maintenance (
    task TEXT NOT NULL,
    holder TEXT,
    leased_until TEXT,
    CONSTRAINT pk_maintenance PRIMARY KEY (task)
);

INSERT INTO schema_info (min_client) VALUES ('0001');

INSERT INTO chunk_places (place, path)
WITH RECURSIVE g(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM g WHERE n < 255) SELECT n, '$[' || n || ']' FROM g;

INSERT INTO maintenance (task) VALUES ('vacuum'), ('analyze'), ('forget writes');
