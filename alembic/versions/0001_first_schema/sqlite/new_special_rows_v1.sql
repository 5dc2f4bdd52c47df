-- Where a written row is sent on if its buffer does more than let the oldest row leave: what is counted by task or episode,
-- or queued. It shows nothing. One look at the buffer decides that, in the trigger that all rows meet.
CREATE VIEW new_special_rows AS
SELECT buffer_id, seq, task_id, episode_id, model_version, session_id FROM experiences WHERE false
