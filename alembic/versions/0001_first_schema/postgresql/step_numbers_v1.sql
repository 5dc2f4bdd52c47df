-- The numbers of rows and of the steps of chunks, in and below the window. A query on some of them
-- bounds first_seq as well as seq: no index knows the seq of chunks.
CREATE VIEW step_numbers AS
SELECT e.buffer_id, e.seq, e.seq AS first_seq, e.task_id, e.episode_id FROM experiences e
UNION ALL
SELECT c.buffer_id, c.first_seq + n.place, c.first_seq, c.task_id, c.episode_id
FROM chunks c
CROSS JOIN LATERAL generate_series(0, c.n_steps - 1) AS n(place)
WHERE NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = c.buffer_id AND x.seq = c.first_seq + n.place)
