-- A DELETE typed by hand: count the tasks of buffers that evict by task once more.
CREATE FUNCTION sqlbuffer_after_delete_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM tasks;
    INSERT INTO tasks (buffer_id, task_id, n_rows, last_seq)
    SELECT e.buffer_id, e.task_id, count(*), max(e.seq) FROM experiences e
    JOIN buffers b ON b.id = e.buffer_id AND b.evict_unit = 'task' GROUP BY e.buffer_id, e.task_id;
    UPDATE buffers b SET live_rows = coalesce((SELECT sum(t.n_rows) FROM tasks t WHERE t.buffer_id = b.id), 0)
    WHERE b.evict_unit = 'task';
    RETURN NULL;
END
$$
