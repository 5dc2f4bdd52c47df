CREATE VIEW v_verdicts AS
SELECT b.name AS buffer, p.key AS episode_id, p.task_id, (v.value ->> 'version')::bigint AS version,
    (v.value ->> 'reward')::double precision AS reward, (v.value ->> 'at')::timestamp with time zone AS judged_at
FROM episodes p
JOIN buffers b ON b.id = p.buffer_id
CROSS JOIN LATERAL jsonb_array_elements(p.verdicts) AS v(value)
