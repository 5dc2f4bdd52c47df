-- Every 64 entries: deletes followers that are gone, and entries that are older than five minutes
-- or not among the last 10,000. Entries become visible in the order of their numbers: a follower
-- that has not seen the last deleted one starts again.
CREATE TRIGGER trg_change_log_trim_v1 AFTER INSERT ON change_log WHEN NEW.id % 64 = 0
BEGIN
    DELETE FROM followers WHERE live_until < strftime('%Y-%m-%dT%H:%M:%fZ', 'now');
    UPDATE buffers SET has_followers = 0
    WHERE has_followers AND NOT EXISTS (SELECT 1 FROM followers f WHERE f.buffer_id = buffers.id);
    INSERT INTO change_log_starts (buffer_id, trimmed_id)
    SELECT buffer_id, max(id) FROM change_log
    WHERE id <= NEW.id - 10000 OR id < (
        SELECT id FROM change_log WHERE inserted_at >= strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-5 minutes') ORDER BY id LIMIT 1)
    GROUP BY buffer_id
    ON CONFLICT (buffer_id) DO UPDATE SET trimmed_id = excluded.trimmed_id;
    DELETE FROM change_log
    WHERE id <= NEW.id - 10000 OR id < (
        SELECT id FROM change_log WHERE inserted_at >= strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-5 minutes') ORDER BY id LIMIT 1);
END
