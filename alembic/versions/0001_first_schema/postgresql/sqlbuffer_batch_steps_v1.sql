-- Returns the columns of a batch for the steps with one of the numbers, from the bytes of chunks.
-- It is a function because its plan is kept: planning takes a third of the time.
CREATE FUNCTION sqlbuffer_batch_steps_v1(
    p_buffer_id integer, p_seqs bigint[], OUT seq bigint, OUT task_id text, OUT agent_id text, OUT step bigint, OUT reward bytea,
    OUT ends bytea, OUT block bytea, OUT block_place integer
) RETURNS SETOF record
LANGUAGE plpgsql STABLE ROWS 256 SET search_path FROM CURRENT SET work_mem = '64MB' AS $$
BEGIN
    -- Each chunk is looked up alone, by the primary key: without statistics PostgreSQL expects only
    -- a few rows in a buffer and would rather read all of them. Both bounds are needed: with one,
    -- the index returns all keys of a page that are below.
    RETURN QUERY
    SELECT d.first_seq + d.place, d.task_id, d.agent_id,
        CASE WHEN d.steps IS NULL THEN d.step + d.place ELSE d.steps[d.place + 1] END,
        substr(d.rewards, d.place * 8 + 1, 8), substr(d.ends, d.place + 1, 1),
        CASE WHEN d.offsets IS NULL
            THEN substr(d.records, d.place * (octet_length(d.records) / d.n_steps) + 1, octet_length(d.records) / d.n_steps)
            ELSE substr(d.records, d.offsets[d.place / d.block_steps + 1]::integer + 1,
                (d.offsets[d.place / d.block_steps + 2] - d.offsets[d.place / d.block_steps + 1])::integer) END,
        CASE WHEN d.offsets IS NULL THEN 0 ELSE d.place % d.block_steps END
    FROM unnest(p_seqs) AS w(seq) CROSS JOIN LATERAL (
        SELECT (w.seq - c.first_seq)::integer AS place, c.* FROM chunk_data c
        WHERE c.buffer_id = p_buffer_id AND c.first_seq <= w.seq AND c.first_seq > w.seq - 256
        ORDER BY c.first_seq DESC LIMIT 1
    ) d
    WHERE d.place < d.n_steps AND NOT EXISTS (
        SELECT 1 FROM deleted_steps x WHERE (SELECT b.has_deleted FROM buffers b WHERE b.id = p_buffer_id)
        AND x.buffer_id = p_buffer_id AND x.seq = w.seq OFFSET 0);
END
$$
