-- Deletes followers that are gone, and entries of the change log: those that were visible to all
-- five minutes ago, and those before the last 10,000 of a buffer. Returns the number of entries.
-- The deciding time is when an entry became visible, and not its own time: a transaction may commit
-- long after it wrote. So a snapshot is stored, and the entries that it shows are deleted later. A
-- follower that has not seen all of them starts again.
CREATE FUNCTION sqlbuffer_trim_changes_v1() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    followed integer;
    log record;
    last_xid xid8;
    n_deleted bigint;
    n_trimmed bigint := 0;
BEGIN
    DELETE FROM followers WHERE live_until < clock_timestamp();
    FOR followed IN
        SELECT id FROM buffers b
        WHERE has_followers AND NOT EXISTS (SELECT 1 FROM followers f WHERE f.buffer_id = b.id)
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        -- A separate statement: it sees followers that registered before the lock was taken.
        UPDATE buffers b SET has_followers = false
        WHERE id = followed AND NOT EXISTS (SELECT 1 FROM followers f WHERE f.buffer_id = b.id);
    END LOOP;
    INSERT INTO change_log_starts (buffer_id)
    SELECT id FROM buffers b WHERE EXISTS (SELECT 1 FROM change_log c WHERE c.buffer_id = b.id)
    ON CONFLICT DO NOTHING;
    FOR log IN
        SELECT buffer_id, next_snapshot::pg_snapshot AS seen, noted_at,
            -- Restored from a server that had given more ids.
            pg_snapshot_xmax(next_snapshot::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot()) AS is_foreign
        FROM change_log_starts ORDER BY buffer_id FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM change_log c WHERE c.buffer_id = log.buffer_id AND c.xid >= pg_snapshot_xmax(pg_current_snapshot());
        IF log.seen IS NULL OR log.is_foreign THEN
            UPDATE change_log_starts SET next_snapshot = pg_current_snapshot()::text, noted_at = clock_timestamp()
            WHERE buffer_id = log.buffer_id;
        ELSIF log.noted_at < clock_timestamp() - interval '5 minutes' THEN
            DELETE FROM change_log c
            WHERE c.buffer_id = log.buffer_id AND c.xid < pg_snapshot_xmax(log.seen) AND pg_visible_in_snapshot(c.xid, log.seen);
            GET DIAGNOSTICS n_deleted = ROW_COUNT;
            n_trimmed := n_trimmed + n_deleted;
            UPDATE change_log_starts
            SET trimmed_snapshot = CASE WHEN n_deleted > 0 THEN next_snapshot ELSE trimmed_snapshot END,
                next_snapshot = pg_current_snapshot()::text, noted_at = clock_timestamp()
            WHERE buffer_id = log.buffer_id;
        END IF;
        SELECT c.xid INTO last_xid FROM change_log c
        WHERE c.buffer_id = log.buffer_id ORDER BY c.xid DESC OFFSET 10000 LIMIT 1;
        IF FOUND THEN
            DELETE FROM change_log c WHERE c.buffer_id = log.buffer_id AND c.xid <= last_xid;
            GET DIAGNOSTICS n_deleted = ROW_COUNT;
            n_trimmed := n_trimmed + n_deleted;
            UPDATE change_log_starts SET trimmed_snapshot = pg_current_snapshot()::text WHERE buffer_id = log.buffer_id;
        END IF;
    END LOOP;
    RETURN n_trimmed;
END
$$
