-- For buffers that evict by task: the task with the oldest last write leaves as a whole; a single
-- task loses its own oldest row. Rows of a batch, whose later numbers are reserved already, wait
-- for its last row: a batch is one write, and the library evicts the rest after it.
CREATE TRIGGER trg_new_special_rows_by_task_v1 INSTEAD OF INSERT ON new_special_rows
WHEN (SELECT evict_unit = 'task' FROM buffers WHERE id = NEW.buffer_id)
BEGIN
    INSERT INTO tasks (buffer_id, task_id, n_rows, last_seq) VALUES (NEW.buffer_id, NEW.task_id, 1, NEW.seq)
    ON CONFLICT (buffer_id, task_id) DO UPDATE SET n_rows = n_rows + 1, last_seq = max(last_seq, excluded.last_seq);
    UPDATE buffers SET live_rows = live_rows + 1 WHERE id = NEW.buffer_id;
    DELETE FROM experiences
    WHERE buffer_id = NEW.buffer_id
      AND task_id = (
          SELECT t.task_id FROM tasks t
          JOIN buffers b ON b.id = t.buffer_id AND b.live_rows > b.max_capacity AND b.next_seq <= NEW.seq + 1
           AND (SELECT min(h.low_seq) FROM holds h WHERE h.buffer_id = NEW.buffer_id AND h.live_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) IS NULL
          WHERE t.buffer_id = NEW.buffer_id AND t.task_id <> NEW.task_id
          ORDER BY t.last_seq LIMIT 1
      );
    DELETE FROM experiences
    WHERE buffer_id = NEW.buffer_id
      AND seq = (
          SELECT min(e.seq) FROM experiences e
          JOIN buffers b ON b.id = e.buffer_id AND b.live_rows > b.max_capacity AND b.next_seq <= NEW.seq + 1
           AND (SELECT min(h.low_seq) FROM holds h WHERE h.buffer_id = NEW.buffer_id AND h.live_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) IS NULL
          WHERE e.buffer_id = NEW.buffer_id
            AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.buffer_id = NEW.buffer_id AND t.task_id <> NEW.task_id)
      );
END
