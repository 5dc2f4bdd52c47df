-- Returns what became of some steps, p_seqs and those of runs from p_firsts up to p_ends, after they were stored. p_wanted says what is looked up:
-- 1 labels, 2 the quarantine, 4 deleted steps.
-- Run by run: without statistics the server would rather read all marks of the buffer.
CREATE FUNCTION sqlbuffer_marks_v1(
    p_buffer_id integer, p_seqs bigint[], p_firsts bigint[], p_ends bigint[], p_wanted integer,
    OUT kind integer, OUT seq bigint, OUT reward_t double precision, OUT adv_t double precision, OUT v_t double precision, OUT fields text
) RETURNS SETOF record
LANGUAGE plpgsql STABLE ROWS 256 SET search_path FROM CURRENT AS $$
BEGIN
    IF p_wanted & 1 <> 0 THEN
        RETURN QUERY SELECT 1, l.seq, l.reward_t, l.adv_t, l.v_t, l.fields::text
        FROM labels l WHERE l.buffer_id = p_buffer_id AND l.seq = ANY (p_seqs)
        UNION ALL SELECT 1, l.seq, l.reward_t, l.adv_t, l.v_t, l.fields::text
        FROM unnest(p_firsts, p_ends) AS r(first, after) CROSS JOIN LATERAL (
            SELECT x.* FROM labels x WHERE x.buffer_id = p_buffer_id AND x.seq >= r.first AND x.seq < r.after OFFSET 0) l;
    END IF;
    IF p_wanted & 2 <> 0 THEN
        RETURN QUERY SELECT 2, q.seq, NULL::double precision, NULL::double precision, NULL::double precision, NULL::text
        FROM quarantine q WHERE q.buffer_id = p_buffer_id AND q.seq = ANY (p_seqs)
        UNION ALL SELECT 2, q.seq, NULL::double precision, NULL::double precision, NULL::double precision, NULL::text
        FROM unnest(p_firsts, p_ends) AS r(first, after) CROSS JOIN LATERAL (
            SELECT x.seq FROM quarantine x WHERE x.buffer_id = p_buffer_id AND x.seq >= r.first AND x.seq < r.after OFFSET 0) q;
    END IF;
    IF p_wanted & 4 <> 0 THEN
        RETURN QUERY SELECT 4, d.seq, NULL::double precision, NULL::double precision, NULL::double precision, NULL::text
        FROM deleted_steps d WHERE d.buffer_id = p_buffer_id AND d.seq = ANY (p_seqs)
        UNION ALL SELECT 4, d.seq, NULL::double precision, NULL::double precision, NULL::double precision, NULL::text
        FROM unnest(p_firsts, p_ends) AS r(first, after) CROSS JOIN LATERAL (
            SELECT x.seq FROM deleted_steps x WHERE x.buffer_id = p_buffer_id AND x.seq >= r.first AND x.seq < r.after OFFSET 0) d;
    END IF;
END
$$
