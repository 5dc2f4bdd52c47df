-- First in, first out. Two bounds: without the lower one the scan reads many dead index entries
-- behind an open snapshot; with a plain DELETE .. WHERE seq <= bound the planner scans the table.
-- Without bitmaps, which read and sort all rows between the bounds, the index returns the oldest
-- rows first and stops.
CREATE FUNCTION sqlbuffer_after_insert_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_bitmapscan = off AS $$
DECLARE
    written record;
    b buffers%ROWTYPE;
    bound bigint;
    n_begun bigint;
    below bigint;
    n_most bigint;
    held bigint;
    n_gone bigint;
    grown bigint[];
    has_ended boolean;
BEGIN
    FOR written IN SELECT buffer_id, count(*) AS n, count(episode_id) AS n_of_episodes, bool_or(terminated IS TRUE OR truncated IS TRUE) AS has_ends, max(seq) AS high FROM new_rows GROUP BY buffer_id ORDER BY buffer_id LOOP
        SELECT * INTO b FROM buffers WHERE id = written.buffer_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'sqlbuffer: no buffer with buffer_id %', written.buffer_id USING ERRCODE = 'foreign_key_violation';
        END IF;
        IF b.is_copying THEN
            RAISE EXCEPTION 'sqlbuffer: the buffer is an unfinished copy' USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        IF b.has_chunks THEN
            RAISE EXCEPTION 'sqlbuffer: buffer % has typed fields, which SQL cannot write; store its steps with ReplayBuffer.add or extend', b.name
            USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF b.has_queue THEN
            INSERT INTO queue_items (buffer_id, seq, task_id, group_id, episode_id, model_version, session_id, freshness)
            SELECT n.buffer_id, n.seq, n.task_id, coalesce((SELECT p.group_id FROM episodes p WHERE p.id = n.episode_id), n.task_id), n.episode_id, n.model_version, n.session_id,
                coalesce(n.model_version, -9223372036854775808)
            FROM new_rows n WHERE n.buffer_id = written.buffer_id;
        END IF;
        IF b.evict_unit = 'task' THEN
            -- One writer at a time: the oldest task depends on all of them.
            PERFORM 1 FROM buffers WHERE id = written.buffer_id FOR NO KEY UPDATE;
            INSERT INTO tasks AS t (buffer_id, task_id, n_rows, last_seq)
            SELECT buffer_id, task_id, count(*), max(seq) FROM new_rows
            WHERE buffer_id = written.buffer_id GROUP BY buffer_id, task_id
            ON CONFLICT (buffer_id, task_id) DO UPDATE
            SET n_rows = t.n_rows + excluded.n_rows, last_seq = greatest(t.last_seq, excluded.last_seq);
            UPDATE buffers SET live_rows = live_rows + written.n WHERE id = written.buffer_id;
            PERFORM sqlbuffer_evict_tasks_v1(written.buffer_id);
        ELSIF b.evict_unit = 'episode' THEN
            -- One writer at a time, as above.
            PERFORM 1 FROM buffers WHERE id = written.buffer_id FOR NO KEY UPDATE;
            WITH grown AS (
                UPDATE episodes p SET n_rows = coalesce(p.n_rows, 0) + n.n
                FROM (SELECT episode_id, count(*) AS n FROM new_rows WHERE buffer_id = written.buffer_id GROUP BY episode_id) n
                WHERE p.id = n.episode_id RETURNING p.n_rows - n.n AS n_before
            )
            SELECT count(*) INTO n_begun FROM grown WHERE n_before <= 0;
            UPDATE buffers SET live_rows = live_rows + written.n, live_episodes = live_episodes + n_begun
            WHERE id = written.buffer_id;
            PERFORM sqlbuffer_evict_episodes_v1(written.buffer_id);
        ELSIF b.evict_unit = 'row' AND b.max_capacity IS NOT NULL THEN
            bound := written.high - b.max_capacity;
            n_most := 2 * written.n + 16;
            IF b.has_holds THEN
                held := sqlbuffer_held_v1(written.buffer_id);
                bound := least(bound, held);
                n_most := 16 * written.n + 4096;
            END IF;
            -- Rows that a hold has kept are far below.
            below := CASE WHEN b.has_holds AND held IS NULL THEN -1 ELSE bound - 8 * written.n - 1024 END;
            IF b.has_queue THEN
                n_gone := sqlbuffer_remove_v1(written.buffer_id, sqlbuffer_evictable_v1(
                    written.buffer_id, below, bound, n_most), true);
            ELSE
                n_gone := sqlbuffer_remove_v1(written.buffer_id, ARRAY(
                    SELECT e.seq FROM experiences e
                    WHERE e.buffer_id = written.buffer_id AND e.seq <= bound AND e.seq > below
                    ORDER BY e.seq LIMIT n_most FOR UPDATE SKIP LOCKED), true);
            END IF;
            IF b.has_holds AND held IS NULL AND n_gone < n_most THEN
                PERFORM sqlbuffer_end_holds_v1(written.buffer_id);
            END IF;
            IF written.n >= 64 THEN
                -- Clean-up depends on the count of dead rows, which would otherwise be a second
                -- late.
                PERFORM pg_stat_force_next_flush();
            END IF;
        END IF;
        grown := NULL;
        IF written.n_of_episodes > 0 THEN
            SELECT l.ids, l.has_ended INTO grown, has_ended FROM sqlbuffer_lock_episodes_v1(
                written.buffer_id, ARRAY(SELECT n.episode_id FROM new_rows n WHERE n.buffer_id = written.buffer_id)) AS l;
        END IF;
        -- Writers never wait for each other here: if several write one task without episodes at the
        -- same time, each has a part. Later transactions add to any part that is free.
        INSERT INTO rollout_stats AS r (buffer_id, task_id, episode_id, part, length, "return", first_seq, last_seq, group_id, reward, is_aborted)
        SELECT written.buffer_id, g.task_id, g.episode_id, CASE WHEN g.episode_id = 0 THEN coalesce(f.part, g.first_seq) ELSE 0 END,
            g.n, nullif(g.total, 'NaN'), g.first_seq, g.last_seq, coalesce(p.group_id, g.task_id), p.reward, coalesce(p.status = 'aborted', false)
        FROM (
            SELECT n.task_id, coalesce(n.episode_id, 0) AS episode_id, count(*) AS n, min(n.seq) AS first_seq, max(n.seq) AS last_seq,
                sum(CASE WHEN n.reward_t > 1e290 THEN 'Infinity' WHEN n.reward_t < -1e290 THEN '-Infinity' ELSE n.reward_t END) AS total
            FROM new_rows n WHERE n.buffer_id = written.buffer_id GROUP BY 1, 2
        ) g
        LEFT JOIN LATERAL (
            SELECT r.part FROM rollout_stats r
            WHERE g.episode_id = 0 AND r.buffer_id = written.buffer_id AND r.task_id = g.task_id AND r.episode_id = 0
              AND current_setting('transaction_isolation') = 'read committed'
            ORDER BY r.part LIMIT 1 FOR UPDATE SKIP LOCKED
        ) f ON true
        LEFT JOIN LATERAL (
            SELECT e.group_id, e.reward, e.status FROM episodes e WHERE e.id = nullif(g.episode_id, 0) OFFSET 0
        ) p ON true
        ORDER BY g.task_id, g.episode_id
        ON CONFLICT (buffer_id, task_id, episode_id, part) DO UPDATE
        SET length = r.length + excluded.length,
            "return" = nullif(CASE WHEN excluded."return" IS NULL THEN r."return" ELSE coalesce(r."return", 0) + excluded."return" END, 'NaN'),
            first_seq = least(r.first_seq, excluded.first_seq), last_seq = greatest(r.last_seq, excluded.last_seq);
        IF grown IS NOT NULL AND (has_ended OR written.has_ends) THEN
            PERFORM sqlbuffer_settle_episodes_v1(
                written.buffer_id, array_agg(l.episode_id), array_agg(l.t), array_agg(l.ends))
            FROM (
                -- A later row of the same statement may have moved the place of an earlier one.
                SELECT DISTINCT ON (n.episode_id) n.episode_id, x.t, n.terminated IS TRUE OR n.truncated IS TRUE AS ends
                FROM new_rows n JOIN experiences x ON x.buffer_id = n.buffer_id AND x.seq = n.seq
                WHERE n.buffer_id = written.buffer_id AND n.episode_id = ANY (grown)
                ORDER BY n.episode_id, x.t DESC
            ) l;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$
