-- Returns for each step with one of the numbers the bytes of a slice of its chunk: the steps from p_first to p_last after it, or the
-- step alone if it has no episode; t, first_seq and n_steps are those of the chunk. The records of steps of more than p_most_bytes each are null.
-- It is a function because its plan is kept: planning takes a third of the time.
CREATE FUNCTION sqlbuffer_slices_v1(
    p_buffer_id integer, p_seqs bigint[], p_first integer, p_last integer, p_stride integer, p_most_bytes bigint,
    OUT seq bigint, OUT task_id text, OUT agent_id text, OUT step bigint, OUT t integer, OUT first_seq bigint, OUT n_steps integer,
    OUT episode_id bigint, OUT rewards bytea, OUT ends bytea, OUT block_steps integer, OUT offsets bigint[], OUT records bytea, OUT layout integer
) RETURNS SETOF record
LANGUAGE plpgsql STABLE ROWS 256 SET search_path FROM CURRENT SET work_mem = '64MB' AS $$
BEGIN
    RETURN QUERY
    SELECT s.first_seq + s.own_place, s.task_id, s.agent_id,
        CASE WHEN s.steps IS NULL THEN s.step + s.own_place ELSE s.steps[s.own_place + 1] END,
        s.t, s.first_seq, s.n_steps, s.episode_id,
        substr(s.rewards, r.place * 8 + 1, r.n * 8), substr(s.ends, r.place + 1, r.n), s.block_steps, s.offsets,
        CASE WHEN octet_length(s.records) > p_most_bytes * s.n_steps THEN NULL
            WHEN s.offsets IS NULL
            THEN substr(s.records, r.place * (octet_length(s.records) / s.n_steps) + 1, r.n * (octet_length(s.records) / s.n_steps))
            ELSE substr(s.records, s.offsets[r.place / s.block_steps + 1]::integer + 1,
                (s.offsets[(r.place + r.n - 1) / s.block_steps + 2] - s.offsets[r.place / s.block_steps + 1])::integer) END, s.layout
    FROM unnest(p_seqs) AS w(seq) CROSS JOIN LATERAL (
        SELECT (w.seq - c.first_seq)::integer AS own_place, c.* FROM chunk_data c
        WHERE c.buffer_id = p_buffer_id AND c.first_seq <= w.seq AND c.first_seq > w.seq - 256
        ORDER BY c.first_seq DESC LIMIT 1
    ) s
    CROSS JOIN LATERAL (
        SELECT f.place, CASE WHEN s.episode_id IS NULL THEN 1 ELSE least(s.n_steps - 1, s.own_place + p_last) - f.place + 1 END AS n
        FROM (SELECT CASE WHEN s.episode_id IS NULL THEN s.own_place ELSE greatest(0, s.own_place + p_first) END AS place) f
        OFFSET 0
    ) r
    WHERE s.own_place < s.n_steps AND (p_stride = 1 OR (s.t + s.own_place) % p_stride = 0) AND NOT EXISTS (
        SELECT 1 FROM deleted_steps x WHERE (SELECT b.has_deleted FROM buffers b WHERE b.id = p_buffer_id)
        AND x.buffer_id = p_buffer_id AND x.seq = w.seq OFFSET 0);
END
$$
