-- Returns slices of chunks with the steps of ranges of episodes, from p_firsts to p_lasts; see sqlbuffer_slices_v1.
-- It is a function because its plan is kept.
-- A chunk may have one step only, so the chunk that holds the first step is looked up: a search over all t that it may have would read
-- hundreds.
CREATE FUNCTION sqlbuffer_ranges_v1(
    p_buffer_id integer, p_episodes bigint[], p_firsts integer[], p_lasts integer[], p_most_bytes bigint,
    OUT seq bigint, OUT episode_id bigint, OUT t integer, OUT place integer, OUT n integer, OUT rewards bytea, OUT ends bytea,
    OUT block_steps integer, OUT offsets bigint[], OUT records bytea, OUT layout integer
) RETURNS SETOF record
LANGUAGE plpgsql STABLE ROWS 64 SET search_path FROM CURRENT SET work_mem = '64MB' AS $$
BEGIN
    RETURN QUERY
    SELECT s.first_seq + s.place, s.episode_id, s.t + s.place, s.place, s.n,
        substr(s.rewards, s.place * 8 + 1, s.n * 8), substr(s.ends, s.place + 1, s.n), s.block_steps, s.offsets,
        CASE WHEN octet_length(s.records) > p_most_bytes * s.n_steps THEN NULL
            WHEN s.offsets IS NULL
            THEN substr(s.records, s.place * (octet_length(s.records) / s.n_steps) + 1, s.n * (octet_length(s.records) / s.n_steps))
            ELSE substr(s.records, s.offsets[s.place / s.block_steps + 1]::integer + 1,
                (s.offsets[(s.place + s.n - 1) / s.block_steps + 2] - s.offsets[s.place / s.block_steps + 1])::integer) END, s.layout
    FROM unnest(p_episodes, p_firsts, p_lasts) AS w(episode_id, first_t, last_t)
    CROSS JOIN LATERAL (
        SELECT k.first_seq FROM chunks k
        WHERE k.buffer_id = p_buffer_id AND k.episode_id = w.episode_id AND k.t <= w.last_t
          AND k.t >= coalesce((
            SELECT b.t FROM chunks b WHERE b.buffer_id = p_buffer_id AND b.episode_id = w.episode_id AND b.t <= w.first_t
            ORDER BY b.t DESC LIMIT 1), w.first_t)
        OFFSET 0
    ) c
    CROSS JOIN LATERAL (
        SELECT q.*, greatest(0, w.first_t - q.t) AS place,
            least(q.n_steps - 1, w.last_t - q.t) - greatest(0, w.first_t - q.t) + 1 AS n
        FROM chunk_data q
        WHERE q.buffer_id = p_buffer_id AND q.first_seq = c.first_seq LIMIT 1
    ) s
    WHERE s.n > 0;
END
$$
