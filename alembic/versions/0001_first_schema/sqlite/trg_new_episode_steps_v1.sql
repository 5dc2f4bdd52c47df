-- Ends or opens an episode that got steps. One without a writer is complete while its last step is
-- terminated or truncated. One that ended in another way takes no step, and neither does one that a
-- lease holds or has used, or that has lost steps to eviction.
CREATE TRIGGER trg_new_episode_steps_v1 INSTEAD OF INSERT ON new_episode_steps
WHEN (SELECT status <> 'open' OR (attempt = 0 AND NEW.ends) FROM episodes WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'sqlbuffer: the episode has ended')
    FROM episodes p
    JOIN rollout_stats r ON r.buffer_id = p.buffer_id AND r.task_id = p.task_id AND r.episode_id = p.id
    WHERE p.id = NEW.id AND p.status <> 'open' AND (
        NOT p.is_implied OR p.was_used
        OR r.first_seq <= (SELECT w.low_seq FROM v_windows w WHERE w.buffer_id = p.buffer_id)
        OR (r.first_seq <= p.last_seq AND NOT EXISTS (
            SELECT 1 FROM step_numbers s WHERE s.buffer_id = p.buffer_id AND s.episode_id = p.id AND s.seq <= p.last_seq))
        OR EXISTS (
            SELECT 1 FROM queue_items q
            WHERE q.buffer_id = p.buffer_id AND q.episode_id = p.id AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    );
    -- Steps of chunks are stored in their order.
    UPDATE episodes
    SET status = CASE WHEN e.is_open THEN 'open' ELSE 'complete' END, is_implied = NOT e.is_open,
        length = CASE WHEN e.is_open THEN NULL WHEN next_t > 0 THEN next_t ELSE e.length END, "return" = CASE WHEN NOT e.is_open THEN e."return" END,
        first_seq = CASE WHEN NOT e.is_open THEN e.first_seq END, last_seq = CASE WHEN NOT e.is_open THEN e.last_seq END,
        ended_at = CASE WHEN NOT e.is_last THEN ended_at WHEN NOT e.is_open THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now') END
    FROM (
        SELECT l.is_last, l.is_last AND NOT NEW.ends AS is_open,
            coalesce((SELECT max(x.t) + 1 FROM experiences x WHERE x.buffer_id = l.buffer_id AND x.episode_id = NEW.id), r.length) AS length, r."return", r.first_seq, r.last_seq
        FROM (
            SELECT NOT EXISTS (
                SELECT 1 FROM experiences x
                WHERE x.buffer_id = p.buffer_id AND x.episode_id = p.id AND x.t > NEW.t
            ) AS is_last, p.buffer_id, p.task_id
            FROM episodes p WHERE p.id = NEW.id
        ) l
        JOIN rollout_stats r ON r.buffer_id = l.buffer_id AND r.task_id = l.task_id AND r.episode_id = NEW.id
    ) e
    WHERE id = NEW.id AND (e.is_last OR status <> 'open');
END
