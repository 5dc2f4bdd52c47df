-- Puts returns into groups and takes others out: Chan's formula for count, mean and sum of squares of two sets. Returns without
-- an end (infinities, and what would overflow when squared) are not counted. Its caller is the only one that changes groups of
-- the buffer.
CREATE FUNCTION sqlbuffer_change_groups_v1(
    p_buffer_id integer, p_tasks text[], p_rollouts integer[], p_was double precision[], p_now double precision[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_seqscan = off AS $$
BEGIN
    INSERT INTO group_stats (buffer_id, task_id, n_rollouts, n_returns, m2)
    SELECT DISTINCT p_buffer_id, g.task_id, 0, 0, 0 FROM unnest(p_tasks, p_rollouts) AS g(task_id, n)
    WHERE g.n > 0 AND NOT EXISTS (SELECT 1 FROM group_stats s WHERE s.buffer_id = p_buffer_id AND s.task_id = g.task_id);
    UPDATE group_stats s
    SET n_rollouts = s.n_rollouts + c.n_rollouts, n_returns = c.n, mean = c.mean, m2 = c.m2, min = c.low, max = c.high,
        spread = c.high - c.low
    FROM (
        SELECT f.task_id, f.n_rollouts, f.n_all - f.n_out AS n,
            CASE WHEN f.n_all > f.n_out THEN f.mean_all + coalesce((f.mean_all - f.mean_out) * f.n_out / (f.n_all - f.n_out), 0) END AS mean,
            CASE WHEN f.n_all > f.n_out THEN greatest(0, f.m2_all - f.m2_out - coalesce(
                (f.mean_out - f.mean_all) ^ 2 * f.n_all * f.n_out / (f.n_all - f.n_out), 0)) ELSE 0 END AS m2,
            (SELECT r."return" FROM rollout_stats r WHERE r.buffer_id = p_buffer_id AND r.task_id = f.task_id
                AND r."return" > -1e100 AND r."return" < 1e100 AND r.episode_id > 0 ORDER BY r."return" LIMIT 1) AS low,
            (SELECT r."return" FROM rollout_stats r WHERE r.buffer_id = p_buffer_id AND r.task_id = f.task_id
                AND r."return" > -1e100 AND r."return" < 1e100 AND r.episode_id > 0 ORDER BY r."return" DESC LIMIT 1) AS high
        FROM (
            SELECT d.*, h.n_returns + d.n_in AS n_all,
                CASE WHEN h.n_returns = 0 THEN d.mean_in WHEN d.n_in = 0 THEN h.mean
                    ELSE h.mean + (d.mean_in - h.mean) * d.n_in / (h.n_returns + d.n_in) END AS mean_all,
                h.m2 + d.m2_in + coalesce((d.mean_in - h.mean) ^ 2 * h.n_returns * d.n_in / nullif(h.n_returns + d.n_in, 0), 0) AS m2_all
            FROM (
                SELECT g.task_id, sum(g.n) AS n_rollouts,
                    count(g.was) AS n_out, avg(g.was) AS mean_out, coalesce(var_pop(g.was) * count(g.was), 0) AS m2_out,
                    count(g.now) AS n_in, avg(g.now) AS mean_in, coalesce(var_pop(g.now) * count(g.now), 0) AS m2_in
                FROM (
                    SELECT v.task_id, v.n, CASE WHEN abs(v.was) < 1e100 THEN v.was END AS was,
                        CASE WHEN abs(v.now) < 1e100 THEN v.now END AS now
                    FROM unnest(p_tasks, p_rollouts, p_was, p_now) AS v(task_id, n, was, now)
                ) g
                GROUP BY g.task_id
            ) d
            CROSS JOIN LATERAL (
                SELECT s.n_returns, s.mean, s.m2 FROM group_stats s
                WHERE s.buffer_id = p_buffer_id AND s.task_id = d.task_id OFFSET 0
            ) h
        ) f
    ) c
    WHERE s.buffer_id = p_buffer_id AND s.task_id = c.task_id;
    IF -1 = ANY (p_rollouts) THEN
        DELETE FROM group_stats s USING unnest(p_tasks) AS g(task_id)
        WHERE s.buffer_id = p_buffer_id AND s.task_id = g.task_id AND s.n_rollouts <= 0;
    END IF;
END
$$
