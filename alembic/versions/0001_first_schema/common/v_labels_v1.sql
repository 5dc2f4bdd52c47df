CREATE VIEW v_labels AS
SELECT w.buffer, h.seq, e.id, e.task_id, h.version, h.reward_t AS reward, h.adv_t AS advantage, h.v_t AS value, h.extra, h.fields,
    h.labelled_at
FROM v_windows w
JOIN label_history h ON h.buffer_id = w.buffer_id AND h.seq > w.low_seq
JOIN experiences e ON e.buffer_id = h.buffer_id AND e.seq = h.seq
UNION ALL
SELECT w.buffer, h.seq, e.id, e.task_id, h.version, h.reward_t AS reward, h.adv_t AS advantage, h.v_t AS value, h.extra, h.fields,
    h.labelled_at
FROM v_windows w
JOIN label_history h ON h.buffer_id = w.buffer_id AND h.seq > w.low_seq
JOIN chunk_steps e ON e.buffer_id = h.buffer_id AND e.seq = h.seq AND e.first_seq BETWEEN h.seq - 255 AND h.seq
