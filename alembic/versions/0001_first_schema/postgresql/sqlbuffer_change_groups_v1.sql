-- Adds rewards to groups and subtracts others: Chan's formula for count, mean and sum of squares of
-- two sets. Rewards that are infinite, or that would overflow when squared, are not counted. A group
-- with a rollout without such a reward has no spread. The caller is the only transaction that changes
-- groups of the buffer. Group by group: in one statement, planners without statistics compare each
-- with each.
CREATE FUNCTION sqlbuffer_change_groups_v1(
    p_buffer_id integer, p_groups text[], p_rollouts integer[], p_was double precision[], p_now double precision[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    c record;
    g group_stats%ROWTYPE;
    n bigint;
BEGIN
    FOR c IN
        SELECT f.group_id, sum(f.n) AS n_rollouts, min(f.now) AS low, max(f.now) AS high,
            count(f.was) AS n_out, avg(f.was) AS mean_out, coalesce(var_pop(f.was) * count(f.was), 0) AS m2_out,
            count(f.now) AS n_in, avg(f.now) AS mean_in, coalesce(var_pop(f.now) * count(f.now), 0) AS m2_in
        FROM (
            SELECT v.group_id, v.n, CASE WHEN abs(v.was) < 1e100 THEN v.was END AS was, CASE WHEN abs(v.now) < 1e100 THEN v.now END AS now
            FROM unnest(p_groups, p_rollouts, p_was, p_now) AS v(group_id, n, was, now)
            WHERE v.n IS NOT NULL
        ) f
        GROUP BY f.group_id
    LOOP
        SELECT * INTO g FROM group_stats s WHERE s.buffer_id = p_buffer_id AND s.group_id = c.group_id;
        IF NOT FOUND AND c.n_rollouts < 1 THEN
            CONTINUE;  -- the buffer is being cleared
        END IF;
        g.n_rollouts := coalesce(g.n_rollouts, 0) + c.n_rollouts;
        IF g.n_rollouts <= 0 THEN
            DELETE FROM group_stats s WHERE s.buffer_id = p_buffer_id AND s.group_id = c.group_id;
            CONTINUE;
        END IF;
        g.n_rewards := coalesce(g.n_rewards, 0);
        g.m2 := coalesce(g.m2, 0);
        IF c.n_in > 0 THEN
            n := g.n_rewards + c.n_in;
            g.m2 := g.m2 + c.m2_in + coalesce((c.mean_in - g.mean) ^ 2 * g.n_rewards * c.n_in / n, 0);
            g.mean := coalesce(g.mean + (c.mean_in - g.mean) * c.n_in / n, c.mean_in);
            g.n_rewards := n;
        END IF;
        IF c.n_out > 0 THEN
            n := g.n_rewards - c.n_out;
            g.m2 := CASE WHEN n > 0 THEN greatest(0, g.m2 - c.m2_out - (c.mean_out - g.mean) ^ 2 * g.n_rewards * c.n_out / n) ELSE 0 END;
            g.mean := CASE WHEN n > 0 THEN g.mean + (g.mean - c.mean_out) * c.n_out / n END;
            g.n_rewards := n;
            -- Compared as rows, so that no other index gives the required order.
            g.min := (
                SELECT coalesce(r.reward, r."return") FROM rollout_stats r
                WHERE (r.buffer_id, r.group_id, coalesce(r.reward, r."return")) > (p_buffer_id, c.group_id, -1e100)
                  AND (r.buffer_id, r.group_id, coalesce(r.reward, r."return")) < (p_buffer_id, c.group_id, 1e100) AND r.episode_id > 0 AND NOT r.is_aborted
                ORDER BY r.buffer_id, r.group_id, coalesce(r.reward, r."return") LIMIT 1);
            g.max := (
                SELECT coalesce(r.reward, r."return") FROM rollout_stats r
                WHERE (r.buffer_id, r.group_id, coalesce(r.reward, r."return")) > (p_buffer_id, c.group_id, -1e100)
                  AND (r.buffer_id, r.group_id, coalesce(r.reward, r."return")) < (p_buffer_id, c.group_id, 1e100) AND r.episode_id > 0 AND NOT r.is_aborted
                ORDER BY r.buffer_id DESC, r.group_id DESC, coalesce(r.reward, r."return") DESC LIMIT 1);
        ELSE
            g.min := least(g.min, c.low);
            g.max := greatest(g.max, c.high);
        END IF;
        INSERT INTO group_stats AS s (buffer_id, group_id, n_rollouts, n_rewards, mean, m2, min, max, spread)
        VALUES (p_buffer_id, c.group_id, g.n_rollouts, g.n_rewards, g.mean, g.m2, g.min, g.max, CASE WHEN g.n_rewards = g.n_rollouts THEN g.max - g.min END)
        ON CONFLICT (buffer_id, group_id) DO UPDATE
        SET n_rollouts = excluded.n_rollouts, n_rewards = excluded.n_rewards, mean = excluded.mean, m2 = excluded.m2,
            min = excluded.min, max = excluded.max, spread = excluded.spread;
    END LOOP;
    -- The rewards of these tasks and groups in the queue are to be compared again.
    INSERT INTO queue_groups AS q (buffer_id, key, version)
    SELECT DISTINCT p_buffer_id, v.key, pg_current_xact_id()::text::bigint
    FROM unnest(p_groups, p_rollouts) AS v(key, n) WHERE v.n IS NULL ORDER BY 2
    ON CONFLICT (buffer_id, key) DO UPDATE SET task_bound = 1e308, group_bound = 1e308, version = excluded.version;
END
$$
