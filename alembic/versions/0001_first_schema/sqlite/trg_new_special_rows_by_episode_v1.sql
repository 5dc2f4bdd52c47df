-- For buffers with a limit of episodes: the ended episode that began first leaves as a whole; the
-- oldest row leaves if there are too many rows as well. Rows of a batch, whose later numbers are
-- reserved already, wait for its last row: a batch is one write, and the library evicts the rest
-- after it. Open episodes stay.
CREATE TRIGGER trg_new_special_rows_by_episode_v1 INSTEAD OF INSERT ON new_special_rows
WHEN (SELECT evict_unit = 'episode' FROM buffers WHERE id = NEW.buffer_id)
BEGIN
    UPDATE buffers
    SET live_rows = live_rows + 1,
        live_episodes = live_episodes + (SELECT count(*) FROM episodes WHERE id = NEW.episode_id AND coalesce(n_rows, 0) = 0)
    WHERE id = NEW.buffer_id;
    UPDATE episodes SET n_rows = coalesce(n_rows, 0) + 1 WHERE id = NEW.episode_id;
    DELETE FROM experiences
    WHERE buffer_id = NEW.buffer_id
      AND episode_id = (
          SELECT s.id FROM episode_states s
          JOIN buffers b ON b.id = s.buffer_id AND b.live_episodes > b.max_episodes AND b.next_seq <= NEW.seq + 1
           AND (SELECT min(h.low_seq) FROM holds h WHERE h.buffer_id = NEW.buffer_id AND h.live_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) IS NULL
          WHERE s.buffer_id = NEW.buffer_id AND s.n_rows > 0 AND s.status <> 'open' ORDER BY s.id LIMIT 1
      );
    DELETE FROM experiences
    WHERE buffer_id = NEW.buffer_id
      AND seq = (
          SELECT min(e.seq) FROM experiences e
          JOIN buffers b ON b.id = e.buffer_id AND b.live_rows > b.max_capacity AND b.next_seq <= NEW.seq + 1
           AND (SELECT min(h.low_seq) FROM holds h WHERE h.buffer_id = NEW.buffer_id AND h.live_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) IS NULL
          WHERE e.buffer_id = NEW.buffer_id
      );
END
