CREATE VIEW v_work AS
SELECT b.name AS buffer, w.group_id, w.sibling, w.task_id, w.status, w.attempt, w.max_attempts, w.worker, w.leased_until,
    coalesce(w.leased_until > clock_timestamp(), false) AS alive, w.reason, w.episode_id, w.is_consumed AS consumed, w.payload,
    w.created_at, w.taken_at, w.ended_at
FROM work_items w
JOIN buffers b ON b.id = w.buffer_id
