-- What waits to be leased, by group, and what may hold a group up. A rollout is an episode, or a row
-- without one. The spread is over those that are complete.
CREATE VIEW v_queue AS
SELECT g.buffer, g.task_id, g.group_id, g.rows, g.free, g.leased, g.uses, g.first_at, g.last_at, g.rollouts, g.spread,
    nullif(substr(
        CASE WHEN g.n_open > 0 THEN ', ' || g.n_open || ' open' ELSE '' END
        || CASE WHEN g.n_incomplete > 0 THEN ', ' || g.n_incomplete || ' aborted or abandoned' ELSE '' END
        || CASE WHEN g.n_stale > 0 THEN ', ' || 'stale by ' || (g.oldest_version - g.least_version) || CASE WHEN g.oldest_version - g.least_version = 1 THEN ' version' ELSE ' versions' END ELSE '' END
        || CASE WHEN g.n_quarantined > 0 THEN ', ' || g.n_quarantined || CASE WHEN g.n_quarantined = 1 THEN ' row' ELSE ' rows' END || ' in quarantine' ELSE '' END
        || CASE WHEN g.leased > 0 THEN ', ' || g.leased || CASE WHEN g.leased = 1 THEN ' row' ELSE ' rows' END || ' leased until ' || g.held_until ELSE '' END
        || CASE WHEN g.n_unjudged > 0 THEN ', ' || g.n_unjudged || ' without a reward' ELSE '' END, 3), '') AS reason
FROM (
    SELECT r.buffer, r.task_id, r.group_id, sum(r.rows) AS rows, sum(r.rows) - sum(r.leased) AS free, sum(r.leased) AS leased,
        sum(r.uses) AS uses, min(r.first_at) AS first_at, max(r.last_at) AS last_at, max(r.held_until) AS held_until,
        sum(CASE WHEN r.episode_id IS NULL THEN r.rows WHEN r.status = 'complete' THEN 1 ELSE 0 END) AS rollouts,
        sum(CASE WHEN r.status = 'open' THEN 1 ELSE 0 END) AS n_open, sum(CASE WHEN r.status IN ('aborted', 'abandoned') THEN 1 ELSE 0 END) AS n_incomplete,
        sum(CASE WHEN r.episode_id IS NULL THEN r.rows - r.n_rewards WHEN r.status = 'complete' AND r.reward IS NULL THEN 1 ELSE 0 END) AS n_unjudged,
        CASE WHEN sum(CASE WHEN (r.episode_id IS NULL OR r.status = 'complete') AND r.low IS NULL THEN 1 ELSE 0 END) = 0
            THEN max(CASE WHEN r.episode_id IS NULL OR r.status = 'complete' THEN r.high END)
                - min(CASE WHEN r.episode_id IS NULL OR r.status = 'complete' THEN r.low END) END AS spread,
        sum(r.n_quarantined) AS n_quarantined, sum(r.n_stale) AS n_stale, max(r.oldest_version) AS oldest_version,
        min(CASE WHEN r.n_stale > 0 THEN r.least_version END) AS least_version
    FROM (
        SELECT v.*, CASE WHEN v.episode_id IS NOT NULL THEN CASE WHEN abs(v.reward) < 1e100 THEN v.reward END WHEN v.n_rewards = v.rows AND abs(v.row_low) < 1e100 AND abs(v.row_high) < 1e100 THEN v.row_low END AS low,
            CASE WHEN v.episode_id IS NOT NULL THEN CASE WHEN abs(v.reward) < 1e100 THEN v.reward END WHEN v.n_rewards = v.rows AND abs(v.row_low) < 1e100 AND abs(v.row_high) < 1e100 THEN v.row_high END AS high
        FROM (
            SELECT q.*, CASE WHEN p.status = 'open' THEN (SELECT e.status FROM episode_states e WHERE e.id = p.id) ELSE p.status END AS status,
                coalesce(p.reward, (
                    SELECT t."return" FROM rollout_stats t WHERE t.buffer_id = q.buffer_id AND t.task_id = q.task_id AND t.episode_id = q.episode_id
                )) AS reward
            FROM (
                SELECT w.buffer, w.buffer_id, q.task_id, q.group_id, q.episode_id, count(*) AS rows,
                    sum(CASE WHEN q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') THEN 1 ELSE 0 END) AS leased,
                    max(CASE WHEN q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') THEN q.leased_until END) AS held_until,
                    sum(q.n_uses) AS uses, min(q.inserted_at) AS first_at, max(q.inserted_at) AS last_at,
                    sum(CASE WHEN b.has_quarantine AND EXISTS (SELECT 1 FROM quarantine x WHERE x.buffer_id = q.buffer_id AND x.seq = q.seq) THEN 1 ELSE 0 END) AS n_quarantined,
                    CASE WHEN max(json_extract(b.config, '$.sampling.staleness_of')) IS NOT 'newest'
                            OR max(q.model_version) < max(b.clock - json_extract(b.config, '$.sampling.max_staleness'))
                        THEN sum(CASE WHEN q.model_version < b.clock - json_extract(b.config, '$.sampling.max_staleness') THEN 1 ELSE 0 END) ELSE 0 END AS n_stale,
                    max(b.clock - json_extract(b.config, '$.sampling.max_staleness')) AS oldest_version, min(q.model_version) AS least_version,
                    min(q.reward) AS row_low, max(q.reward) AS row_high,
                    count(q.reward) AS n_rewards
                FROM v_windows w
                JOIN buffers b ON b.id = w.buffer_id
                JOIN (
                    SELECT q.buffer_id, q.seq, q.task_id, q.group_id, q.episode_id, q.model_version, q.n_uses, q.used_up, q.leased_until, q.inserted_at,
                        CASE WHEN q.episode_id IS NULL THEN coalesce((
                        SELECT l.reward_t FROM labels l WHERE l.key = (q.buffer_id << 40 | q.seq)), (
                        SELECT e.reward_t FROM experiences e WHERE e.key = (q.buffer_id << 40 | q.seq))) END AS reward
                    FROM queue_items q
                ) q ON q.buffer_id = w.buffer_id AND q.seq > w.low_seq AND NOT q.used_up
                GROUP BY w.buffer, w.buffer_id, q.task_id, q.group_id, q.episode_id
            ) q
            LEFT JOIN episodes p ON p.id = q.episode_id
        ) v
    ) r
    GROUP BY r.buffer, r.task_id, r.group_id
) g
