CREATE VIEW v_verdicts AS
SELECT b.name AS buffer, p."key" AS episode_id, p.task_id, json_extract(v.value, '$.version') AS version,
    CAST(json_extract(v.value, '$.reward') AS REAL) AS reward, json_extract(v.value, '$.at') AS judged_at
FROM episodes p
JOIN buffers b ON b.id = p.buffer_id
JOIN json_each(p.verdicts) v
