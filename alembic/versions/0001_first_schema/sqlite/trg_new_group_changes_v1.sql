-- Updates a group: Welford's update of count, mean and sum of squares. Rewards that are infinite, or
-- that would overflow when squared, are not counted. A group with a rollout without such a reward has
-- no spread.
CREATE TRIGGER trg_new_group_changes_v1 INSTEAD OF INSERT ON new_group_changes
BEGIN
    INSERT INTO group_stats (buffer_id, group_id, n_rollouts, n_rewards, mean, m2, min, max)
    SELECT NEW.buffer_id, NEW.group_id, NEW.n_rollouts, r.value IS NOT NULL, r.value, 0.0, r.value, r.value
    FROM (SELECT CASE WHEN abs(NEW.now) < 1e100 THEN NEW.now END AS value) r
    WHERE NEW.n_rollouts > 0 OR EXISTS (SELECT 1 FROM group_stats WHERE buffer_id = NEW.buffer_id AND group_id = NEW.group_id)
    ON CONFLICT (buffer_id, group_id) DO UPDATE
    SET n_rollouts = n_rollouts + excluded.n_rollouts, n_rewards = n_rewards + excluded.n_rewards,
        mean = coalesce(mean + (excluded.mean - mean) / (n_rewards + 1), excluded.mean, mean),
        m2 = m2 + coalesce((excluded.mean - mean) * (excluded.mean - mean) * n_rewards / (n_rewards + 1), 0.0),
        min = coalesce(min(min, excluded.min), min, excluded.min), max = coalesce(max(max, excluded.max), max, excluded.max);
    UPDATE group_stats
    SET n_rewards = n_rewards - 1, mean = CASE WHEN n_rewards > 1 THEN mean + (mean - NEW.was) / (n_rewards - 1) END,
        m2 = CASE WHEN n_rewards > 1 THEN max(0.0, m2 - (NEW.was - mean) * (NEW.was - mean) * n_rewards / (n_rewards - 1)) ELSE 0.0 END,
        min = (SELECT coalesce(r.reward, r."return") FROM rollout_stats r
            WHERE r.buffer_id = NEW.buffer_id AND r.group_id = NEW.group_id AND coalesce(r.reward, r."return") > -1e100
              AND coalesce(r.reward, r."return") < 1e100 AND r.episode_id > 0 AND NOT r.is_aborted
            ORDER BY coalesce(r.reward, r."return") LIMIT 1),
        max = (SELECT coalesce(r.reward, r."return") FROM rollout_stats r
            WHERE r.buffer_id = NEW.buffer_id AND r.group_id = NEW.group_id AND coalesce(r.reward, r."return") > -1e100
              AND coalesce(r.reward, r."return") < 1e100 AND r.episode_id > 0 AND NOT r.is_aborted
            ORDER BY coalesce(r.reward, r."return") DESC LIMIT 1)
    WHERE buffer_id = NEW.buffer_id AND group_id = NEW.group_id AND abs(NEW.was) < 1e100;
    DELETE FROM group_stats
    WHERE buffer_id = NEW.buffer_id AND group_id = NEW.group_id AND NEW.n_rollouts < 0 AND n_rollouts <= 0;
    UPDATE group_stats SET spread = CASE WHEN n_rewards = n_rollouts THEN max - min END
    WHERE buffer_id = NEW.buffer_id AND group_id = NEW.group_id;
END
