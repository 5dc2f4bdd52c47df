-- The groups that triggers keep, so no step is read. Tasks whose steps have no episode, and groups
-- whose episodes were all aborted, are not among them, and come second. Each column that groups do
-- not keep is a separate lookup: a query pays only for the columns that it selects. Triggers keep
-- groups for longer than their steps. One without a step in the window is not shown: the end of a
-- window that moves by row tells, and elsewhere a look at the steps of its rollouts.
CREATE VIEW v_groups AS
SELECT b.name AS buffer,
    (SELECT r.task_id FROM rollout_stats r WHERE r.buffer_id = g.buffer_id AND r.group_id = g.group_id ORDER BY r.buffer_id, r.group_id, coalesce(r.reward, r."return"), r.first_seq LIMIT 1) AS task_id,
    g.group_id, g.n_rollouts AS rollouts,
    (SELECT CAST(sum(r.length) AS bigint) FROM rollout_stats r WHERE r.buffer_id = g.buffer_id AND r.group_id = g.group_id) AS steps,
    g.mean AS return_mean, g.min AS return_min, g.max AS return_max, g.spread AS return_spread,
    CASE WHEN g.n_rewards > 0 THEN g.m2 / g.n_rewards END AS return_variance,
    (SELECT count(*) FROM rollout_stats r WHERE r.buffer_id = g.buffer_id AND r.group_id = g.group_id AND r.episode_id > 0 AND (
        r.is_aborted OR EXISTS (SELECT 1 FROM episodes p WHERE p.id = r.episode_id AND p.status = 'open'
            AND (SELECT e.status FROM episode_states e WHERE e.id = p.id) = 'abandoned'))) AS incomplete,
    CASE WHEN b.has_queue THEN (
        SELECT count(*) FROM rollout_stats r JOIN episodes p ON p.id = r.episode_id
        WHERE r.buffer_id = g.buffer_id AND r.group_id = g.group_id AND NOT r.is_aborted AND NOT p.was_used
          AND EXISTS (SELECT 1 FROM rollout_stats k JOIN episodes u ON u.id = k.episode_id
              WHERE k.buffer_id = g.buffer_id AND k.group_id = g.group_id AND u.used_at < p.started_at)
          AND (p.status <> 'open' OR (SELECT e.status FROM episode_states e WHERE e.id = p.id) <> 'abandoned')
          AND (EXISTS (SELECT 1 FROM experiences x WHERE x.buffer_id = g.buffer_id AND x.episode_id = p.id)
              OR EXISTS (SELECT 1 FROM chunks x WHERE x.buffer_id = g.buffer_id AND x.episode_id = p.id))
    ) ELSE 0 END AS late
FROM group_stats g
JOIN buffers b ON b.id = g.buffer_id
JOIN v_windows w ON w.buffer_id = g.buffer_id
WHERE EXISTS (SELECT 1 FROM rollout_stats r WHERE r.buffer_id = g.buffer_id AND r.group_id = g.group_id AND r.last_seq > w.low_seq
    AND (w.evict_unit = 'row' OR r.episode_id = 0 OR EXISTS (SELECT 1 FROM experiences x WHERE x.buffer_id = r.buffer_id AND x.episode_id = r.episode_id)
        OR EXISTS (SELECT 1 FROM chunks x WHERE x.buffer_id = r.buffer_id AND x.episode_id = r.episode_id)))
UNION ALL
SELECT b.name, min(r.task_id), r.group_id, CAST(max(CASE WHEN r.episode_id = 0 THEN 1 ELSE 0 END) AS bigint), CAST(sum(r.length) AS bigint),
    sum(CASE WHEN r.episode_id = 0 THEN r."return" END), sum(CASE WHEN r.episode_id = 0 THEN r."return" END),
    sum(CASE WHEN r.episode_id = 0 THEN r."return" END),
    CASE WHEN sum(CASE WHEN r.episode_id = 0 THEN r."return" END) IS NOT NULL THEN CAST(0 AS double precision) END,
    CASE WHEN sum(CASE WHEN r.episode_id = 0 THEN r."return" END) IS NOT NULL THEN CAST(0 AS double precision) END,
    CAST(sum(CASE WHEN r.episode_id > 0 THEN 1 ELSE 0 END) AS bigint), CAST(0 AS bigint)
FROM rollout_stats r
JOIN buffers b ON b.id = r.buffer_id
JOIN v_windows w ON w.buffer_id = r.buffer_id
WHERE (r.episode_id = 0 OR r.is_aborted) AND r.last_seq > w.low_seq
  AND (w.evict_unit = 'row' OR CASE WHEN r.episode_id > 0
      THEN EXISTS (SELECT 1 FROM experiences x WHERE x.buffer_id = r.buffer_id AND x.episode_id = r.episode_id)
          OR EXISTS (SELECT 1 FROM chunks x WHERE x.buffer_id = r.buffer_id AND x.episode_id = r.episode_id)
      ELSE EXISTS (SELECT 1 FROM experiences x WHERE x.buffer_id = r.buffer_id AND x.task_id = r.task_id)
          OR EXISTS (SELECT 1 FROM chunks x WHERE x.buffer_id = r.buffer_id AND x.task_id = r.task_id) END)
  AND NOT EXISTS (SELECT 1 FROM group_stats g WHERE g.buffer_id = r.buffer_id AND g.group_id = r.group_id)
GROUP BY b.name, r.buffer_id, r.group_id
