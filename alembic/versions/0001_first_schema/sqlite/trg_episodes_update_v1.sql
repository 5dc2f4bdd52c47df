-- An episode that ends may exceed the limit of episodes.
CREATE TRIGGER trg_episodes_update_v1 AFTER UPDATE OF status ON episodes
WHEN OLD.status = 'open' AND NEW.status <> 'open'
    AND (SELECT live_episodes > max_episodes FROM buffers WHERE id = NEW.buffer_id)
    AND (SELECT min(h.low_seq) FROM holds h WHERE h.buffer_id = NEW.buffer_id AND h.live_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) IS NULL
BEGIN
    DELETE FROM chunks
    WHERE buffer_id = NEW.buffer_id
      AND episode_id = (
          SELECT id FROM episode_states
          WHERE buffer_id = NEW.buffer_id AND n_rows > 0 AND status <> 'open' ORDER BY id LIMIT 1
      );
    DELETE FROM experiences
    WHERE buffer_id = NEW.buffer_id
      AND episode_id = (
          SELECT id FROM episode_states
          WHERE buffer_id = NEW.buffer_id AND n_rows > 0 AND status <> 'open' ORDER BY id LIMIT 1
      );
END
