-- Changes what rows hold, and notes that in payload_changes; returns how many of them the buffer has.
CREATE FUNCTION sqlbuffer_replace_v1(
    p_buffer_id integer, p_seqs bigint[], p_arrays bytea[], p_fields text[], p_rewards double precision[],
    p_terminated boolean[], p_truncated boolean[], p_names text
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    n_changed bigint;
BEGIN
    UPDATE buffers SET has_changes = true WHERE id = p_buffer_id AND NOT has_changes;
    -- By their places, each found by the primary key: without statistics the planner would read the whole buffer.
    WITH new AS (
        SELECT e.ctid AS place, n.* FROM unnest(p_seqs, p_arrays, p_fields, p_rewards, p_terminated, p_truncated)
            AS n(seq, arrays, fields, reward_t, terminated, truncated)
        CROSS JOIN LATERAL (
            SELECT x.ctid FROM experiences x WHERE x.buffer_id = p_buffer_id AND x.seq = n.seq FOR UPDATE
        ) AS e
    ), changed AS (
        UPDATE experiences e SET arrays = new.arrays, fields = new.fields::jsonb, reward_t = new.reward_t,
            terminated = new.terminated, truncated = new.truncated
        FROM new WHERE e.ctid = new.place RETURNING e.seq
    )
    INSERT INTO payload_changes AS c (buffer_id, seq, fields, n_changes)
    SELECT p_buffer_id, seq, p_names, 1 FROM changed
    ON CONFLICT (buffer_id, seq) DO UPDATE
    SET fields = excluded.fields, n_changes = c.n_changes + 1, changed_at = excluded.changed_at;
    GET DIAGNOSTICS n_changed = ROW_COUNT;
    RETURN n_changed;
END
$$
