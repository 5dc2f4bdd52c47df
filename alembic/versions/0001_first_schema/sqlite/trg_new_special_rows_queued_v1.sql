-- For buffers with leases: each row has a row in the queue, and rows that have left the window are
-- deleted unless they are leased. Only the last numbers are checked: a row that was leased when it
-- left is deleted when it is given back, or with the next batch.
CREATE TRIGGER trg_new_special_rows_queued_v1 INSTEAD OF INSERT ON new_special_rows
WHEN (SELECT has_queue FROM buffers WHERE id = NEW.buffer_id)
BEGIN
    INSERT INTO queue_items (buffer_id, seq, task_id, group_id, episode_id, model_version, session_id, freshness)
    VALUES (
        NEW.buffer_id, NEW.seq, NEW.task_id, coalesce((SELECT group_id FROM episodes WHERE id = NEW.episode_id), NEW.task_id), NEW.episode_id, NEW.model_version, NEW.session_id,
        coalesce(NEW.model_version, -9223372036854775808)
    );
    DELETE FROM experiences
    WHERE "key" <= (NEW.buffer_id << 40) + min(
          NEW.seq - (SELECT max_capacity FROM buffers WHERE id = NEW.buffer_id),
          coalesce((SELECT min(h.low_seq) FROM holds h WHERE h.buffer_id = NEW.buffer_id AND h.live_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), NEW.seq))
      AND "key" > (NEW.buffer_id << 40) + (SELECT max(0, NEW.seq - 64 - max_capacity) FROM buffers WHERE id = NEW.buffer_id)
      AND NOT EXISTS (
          SELECT 1 FROM queue_items q
          WHERE q.buffer_id = NEW.buffer_id AND q.seq = experiences.seq
            AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      );
END
