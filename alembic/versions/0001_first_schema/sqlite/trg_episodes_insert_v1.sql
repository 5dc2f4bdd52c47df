-- An episode that begins may make the list of episodes without steps too long. The list is checked
-- less often the longer it is, so that the cost stays the same.
CREATE TRIGGER trg_episodes_insert_v1 AFTER INSERT ON episodes
WHEN (SELECT abs(random() % 1000000) * (keep_episodes / 1000000.0) < 100 FROM buffers WHERE id = NEW.buffer_id)
BEGIN
    DELETE FROM episodes
    WHERE buffer_id = NEW.buffer_id
      AND id <= (
          SELECT id FROM episodes WHERE buffer_id = NEW.buffer_id ORDER BY id DESC
          LIMIT 1 OFFSET (SELECT keep_episodes FROM buffers WHERE id = NEW.buffer_id)
      )
      AND EXISTS (SELECT 1 FROM episode_states s WHERE s.id = episodes.id AND s.status <> 'open')
      AND NOT EXISTS (SELECT 1 FROM chunks c WHERE c.buffer_id = NEW.buffer_id AND c.episode_id = episodes.id)
      AND NOT EXISTS (SELECT 1 FROM experiences e WHERE e.buffer_id = NEW.buffer_id AND e.episode_id = episodes.id);
END
