-- Changes values of steps, and records that in payload_changes. Chunks are not rewritten: the new
-- values of their steps are in replaced_steps. Steps that the buffer no longer has are left out.
-- The chunk of a step is looked up in a range of one buffer, in order: only the primary key gives
-- that.
CREATE FUNCTION sqlbuffer_replace_v1(
    p_buffer_id integer, p_seqs bigint[], p_arrays bytea[], p_fields text[], p_rewards double precision[],
    p_terminated boolean[], p_truncated boolean[], p_names text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    seqs bigint[];
BEGIN
    UPDATE buffers SET has_changes = true WHERE id = p_buffer_id AND NOT has_changes;
    -- Locked: otherwise a step that is deleted at the same time would leave its new values behind.
    PERFORM 1 FROM chunks c WHERE c.buffer_id = p_buffer_id AND c.first_seq = ANY (ARRAY(
        SELECT DISTINCT f.first_seq FROM unnest(p_seqs) AS g(seq) CROSS JOIN LATERAL (
            SELECT x.first_seq FROM chunks x WHERE x.buffer_id >= p_buffer_id AND x.buffer_id <= p_buffer_id AND x.first_seq <= g.seq AND x.first_seq > g.seq - 256
            ORDER BY x.buffer_id DESC, x.first_seq DESC LIMIT 1) AS f))
    ORDER BY c.first_seq FOR UPDATE;
    WITH changed AS (
        INSERT INTO replaced_steps AS r (buffer_id, seq, record, fields, reward_t, terminated, truncated)
        SELECT p_buffer_id, n.seq, n.arrays, n.fields::jsonb, n.reward_t, n.terminated, n.truncated
        FROM unnest(p_seqs, p_arrays, p_fields, p_rewards, p_terminated, p_truncated)
            AS n(seq, arrays, fields, reward_t, terminated, truncated)
        CROSS JOIN LATERAL (
            SELECT x.first_seq, x.n_steps FROM chunks x WHERE x.buffer_id >= p_buffer_id AND x.buffer_id <= p_buffer_id AND x.first_seq <= n.seq AND x.first_seq > n.seq - 256
            ORDER BY x.buffer_id DESC, x.first_seq DESC LIMIT 1) AS c
        WHERE n.seq < c.first_seq + c.n_steps
          AND NOT EXISTS (SELECT 1 FROM deleted_steps d WHERE d.buffer_id = p_buffer_id AND d.seq = n.seq OFFSET 0)
        ON CONFLICT (buffer_id, seq) DO UPDATE
        SET record = excluded.record, fields = excluded.fields, reward_t = excluded.reward_t,
            terminated = excluded.terminated, truncated = excluded.truncated
        RETURNING r.seq
    )
    SELECT coalesce(array_agg(seq), '{}') INTO seqs FROM changed;
    INSERT INTO payload_changes AS c (buffer_id, seq, fields, n_changes)
    SELECT p_buffer_id, u.seq, p_names, 1 FROM unnest(seqs) AS u(seq)
    ON CONFLICT (buffer_id, seq) DO UPDATE
    SET fields = excluded.fields, n_changes = c.n_changes + 1, changed_at = excluded.changed_at;
END
$$
