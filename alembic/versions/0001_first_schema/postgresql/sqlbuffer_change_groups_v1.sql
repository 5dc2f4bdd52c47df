-- Takes returns out of groups and puts others in: Chan's formula for count, mean and sum of squares of two sets. Returns without
-- an end (infinities, and what would overflow when squared) are not counted.
CREATE FUNCTION sqlbuffer_change_groups_v1(
    p_buffer_ids integer[], p_tasks text[], p_rollouts integer[], p_was double precision[], p_now double precision[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_seqscan = off AS $$
BEGIN
    INSERT INTO group_stats (buffer_id, task_id, n_rollouts, n_returns, m2)
    SELECT DISTINCT g.buffer_id, g.task_id, 0, 0, 0 FROM unnest(p_buffer_ids, p_tasks, p_rollouts) AS g(buffer_id, task_id, n)
    WHERE g.n > 0 AND NOT EXISTS (
        SELECT 1 FROM group_stats s WHERE s.buffer_id = g.buffer_id AND s.task_id = g.task_id)
    ORDER BY 1, 2 ON CONFLICT DO NOTHING;
    -- In one order: two writers may write the same groups. Statements of their own: they see what others did who held the lock.
    PERFORM 1 FROM (
        SELECT DISTINCT g.buffer_id, g.task_id FROM unnest(p_buffer_ids, p_tasks) AS g(buffer_id, task_id) ORDER BY 1, 2
    ) k CROSS JOIN LATERAL (
        SELECT 1 FROM group_stats s WHERE s.buffer_id = k.buffer_id AND s.task_id = k.task_id FOR UPDATE
    ) l;
    UPDATE group_stats s
    SET n_rollouts = s.n_rollouts + c.n_rollouts, n_returns = c.n, mean = c.mean, m2 = c.m2, min = c.low, max = c.high,
        spread = c.high - c.low
    FROM (
        SELECT f.buffer_id, f.task_id, f.n_rollouts, f.n_left + f.n_in AS n,
            CASE WHEN f.n_left = 0 THEN f.mean_in WHEN f.n_in = 0 THEN f.mean_left
                ELSE f.mean_left + (f.mean_in - f.mean_left) * f.n_in / (f.n_left + f.n_in) END AS mean,
            f.m2_left + f.m2_in + CASE WHEN f.n_left = 0 OR f.n_in = 0 THEN 0
                ELSE (f.mean_in - f.mean_left) ^ 2 * f.n_left * f.n_in / (f.n_left + f.n_in) END AS m2,
            (SELECT r."return" FROM rollout_stats r WHERE r.buffer_id = f.buffer_id AND r.task_id = f.task_id
                AND r."return" > -1e100 AND r."return" < 1e100 ORDER BY r."return" LIMIT 1) AS low,
            (SELECT r."return" FROM rollout_stats r WHERE r.buffer_id = f.buffer_id AND r.task_id = f.task_id
                AND r."return" > -1e100 AND r."return" < 1e100 ORDER BY r."return" DESC LIMIT 1) AS high
        FROM (
            SELECT d.*, h.n_returns - d.n_out AS n_left,
                h.mean + (h.mean - coalesce(d.mean_out, h.mean)) * d.n_out / nullif(h.n_returns - d.n_out, 0) AS mean_left,
                CASE WHEN h.n_returns > d.n_out THEN greatest(0, h.m2 - d.m2_out - coalesce(
                    (d.mean_out - h.mean) ^ 2 * h.n_returns * d.n_out / (h.n_returns - d.n_out), 0)) ELSE 0 END AS m2_left
            FROM (
                SELECT g.buffer_id, g.task_id, sum(g.n) AS n_rollouts,
                    count(g.was) AS n_out, avg(g.was) AS mean_out, coalesce(var_pop(g.was) * count(g.was), 0) AS m2_out,
                    count(g.now) AS n_in, avg(g.now) AS mean_in, coalesce(var_pop(g.now) * count(g.now), 0) AS m2_in
                FROM (
                    SELECT v.buffer_id, v.task_id, v.n, CASE WHEN abs(v.was) < 1e100 THEN v.was END AS was,
                        CASE WHEN abs(v.now) < 1e100 THEN v.now END AS now
                    FROM unnest(p_buffer_ids, p_tasks, p_rollouts, p_was, p_now) AS v(buffer_id, task_id, n, was, now)
                ) g
                GROUP BY g.buffer_id, g.task_id
            ) d
            CROSS JOIN LATERAL (
                SELECT s.n_returns, s.mean, s.m2 FROM group_stats s
                WHERE s.buffer_id = d.buffer_id AND s.task_id = d.task_id OFFSET 0
            ) h
        ) f
    ) c
    WHERE s.buffer_id = c.buffer_id AND s.task_id = c.task_id;
    IF -1 = ANY (p_rollouts) THEN
        DELETE FROM group_stats s USING unnest(p_buffer_ids, p_tasks) AS g(buffer_id, task_id)
        WHERE s.buffer_id = g.buffer_id AND s.task_id = g.task_id AND s.n_rollouts <= 0;
    END IF;
END
$$
