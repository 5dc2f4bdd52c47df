-- Written rows are inserted here if their buffer does more than evict the oldest row: it evicts by
-- task or episode, or has a queue. The view is always empty. The trigger of all rows decides this
-- with one read of the buffer.
CREATE VIEW new_special_rows AS
SELECT buffer_id, seq, task_id, episode_id, model_version, session_id FROM experiences WHERE false
