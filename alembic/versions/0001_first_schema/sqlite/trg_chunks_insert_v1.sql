-- Numbers, counts and queues the steps of a chunk. The library reserves the numbers of a batch
-- first, and evicts after it: in a buffer that evicts by row, without a queue, the trigger then
-- does nothing.
CREATE TRIGGER trg_chunks_insert_v1 AFTER INSERT ON chunks
WHEN coalesce((
    SELECT next_seq < NEW.first_seq + NEW.n_steps OR evict_unit <> 'row' OR has_queue OR NOT has_chunks OR is_copying
    FROM buffers WHERE id = NEW.buffer_id), true)
BEGIN
    SELECT RAISE(ABORT, 'sqlbuffer: no buffer with this buffer_id')
    WHERE NOT EXISTS (SELECT 1 FROM buffers WHERE id = NEW.buffer_id);
    SELECT RAISE(ABORT, 'sqlbuffer: this buffer keeps rows in experiences, and no chunks')
    WHERE NOT (SELECT has_chunks FROM buffers WHERE id = NEW.buffer_id);
    SELECT RAISE(ABORT, 'sqlbuffer: the buffer is an unfinished copy')
    WHERE (SELECT is_copying FROM buffers WHERE id = NEW.buffer_id);
    -- The library adds up a batch itself.
    INSERT INTO rollout_stats (buffer_id, task_id, episode_id, length, "return", first_seq, last_seq, group_id, reward, is_aborted)
    SELECT NEW.buffer_id, NEW.task_id, coalesce(NEW.episode_id, 0), NEW.n_steps,
        (SELECT sum(r.value) FROM json_each(NEW.reward_t) r), NEW.first_seq, NEW.first_seq + NEW.n_steps - 1,
        coalesce(p.group_id, NEW.task_id), p.reward, coalesce(p.status = 'aborted', false)
    FROM buffers b LEFT JOIN episodes p ON p.id = NEW.episode_id
    WHERE b.id = NEW.buffer_id AND b.next_seq < NEW.first_seq + NEW.n_steps
    ON CONFLICT (buffer_id, task_id, episode_id, part) DO UPDATE
    SET length = length + excluded.length,
        "return" = CASE WHEN excluded."return" IS NULL THEN "return" ELSE coalesce("return", 0) + excluded."return" END,
        first_seq = min(first_seq, excluded.first_seq), last_seq = max(last_seq, excluded.last_seq);
    UPDATE buffers SET next_seq = NEW.first_seq + NEW.n_steps
    WHERE id = NEW.buffer_id AND next_seq < NEW.first_seq + NEW.n_steps;
    INSERT INTO queue_items (buffer_id, seq, task_id, group_id, episode_id, model_version, session_id, freshness)
    SELECT NEW.buffer_id, NEW.first_seq + n.place, NEW.task_id,
        coalesce((SELECT group_id FROM episodes WHERE id = NEW.episode_id), NEW.task_id), NEW.episode_id, NEW.model_version, NEW.session_id,
        coalesce(NEW.model_version, -9223372036854775808)
    FROM buffers b CROSS JOIN chunk_places n WHERE b.id = NEW.buffer_id AND b.has_queue AND n.place < NEW.n_steps;
    INSERT INTO tasks (buffer_id, task_id, n_rows, last_seq)
    SELECT NEW.buffer_id, NEW.task_id, NEW.n_steps, NEW.first_seq + NEW.n_steps - 1
    FROM buffers WHERE id = NEW.buffer_id AND evict_unit = 'task'
    ON CONFLICT (buffer_id, task_id) DO UPDATE SET n_rows = n_rows + excluded.n_rows, last_seq = max(last_seq, excluded.last_seq);
    UPDATE buffers
    SET live_rows = live_rows + NEW.n_steps,
        live_episodes = live_episodes + (
            SELECT count(*) FROM episodes WHERE id = NEW.episode_id AND coalesce(n_rows, 0) = 0 AND evict_unit = 'episode')
    WHERE id = NEW.buffer_id AND evict_unit <> 'row';
    UPDATE episodes SET n_rows = coalesce(n_rows, 0) + NEW.n_steps
    WHERE id = NEW.episode_id AND (SELECT evict_unit = 'episode' FROM buffers WHERE id = NEW.buffer_id);
END
