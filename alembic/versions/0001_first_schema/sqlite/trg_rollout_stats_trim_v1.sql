-- A task without episodes may make the list of rollouts without steps too long; see
-- trg_episodes_insert_v1.
CREATE TRIGGER trg_rollout_stats_trim_v1 AFTER INSERT ON rollout_stats
WHEN NEW.episode_id = 0
    AND (SELECT abs(random() % 1000000) * (keep_episodes / 1000000.0) < 100 FROM buffers WHERE id = NEW.buffer_id)
BEGIN
    DELETE FROM rollout_stats
    WHERE buffer_id = NEW.buffer_id AND episode_id = 0
      AND first_seq <= (
          SELECT first_seq FROM rollout_stats WHERE buffer_id = NEW.buffer_id ORDER BY first_seq DESC
          LIMIT 1 OFFSET (SELECT keep_episodes FROM buffers WHERE id = NEW.buffer_id)
      )
      AND last_seq <= (SELECT low_seq FROM v_windows WHERE buffer_id = NEW.buffer_id);
END
