-- Rows stay here after their steps have left, so that the learning curve is complete. States of open
-- episodes are looked up: without statistics PostgreSQL would compare each episode with all others.
CREATE VIEW v_episodes AS
SELECT b.name AS buffer, p.key AS episode_id, p.task_id, p.agent_id, p.group_id, p.parent_id,
    CASE WHEN p.status = 'open' THEN (SELECT s.status FROM episode_states s WHERE s.id = p.id) ELSE p.status END AS status, p.length,
    CASE WHEN p.status <> 'open' THEN p."return" END AS episode_return, p.reward,
    coalesce(p.reward, CASE WHEN p.status <> 'open' THEN p."return" END) AS episode_reward,
    p.first_seq, p.last_seq, p.model_version, p.meta, p.started_at, p.ended_at,
    nullif(p.attempt, 0) AS attempt
FROM episodes p
JOIN buffers b ON b.id = p.buffer_id
