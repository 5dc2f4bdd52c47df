-- Tells which ids the buffer holds and draws numbers for the others, in the writing transaction, whose id comes first.
-- A row that has left the window gives its id free.
CREATE FUNCTION sqlbuffer_draw_v1(p_buffer_id integer, p_ids text[], OUT held text[], OUT seqs bigint[], OUT deletions bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    low bigint;
    gone bigint[];
BEGIN
    PERFORM pg_current_xact_id();
    SELECT w.low_seq, w.deletions INTO low, deletions FROM v_windows w WHERE w.buffer_id = p_buffer_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'sqlbuffer: no buffer with buffer_id %', p_buffer_id USING ERRCODE = 'foreign_key_violation';
    END IF;
    SELECT coalesce(array_agg(e.id) FILTER (WHERE e.seq > low), '{}'), coalesce(array_agg(e.seq) FILTER (WHERE e.seq <= low), '{}')
    INTO held, gone
    FROM experiences e WHERE e.buffer_id = p_buffer_id AND e.id = ANY (p_ids);
    PERFORM sqlbuffer_remove_v1(p_buffer_id, gone);
    SELECT array_agg(nextval('sqlbuffer_seq_' || p_buffer_id)) INTO seqs
    FROM generate_series(1, cardinality(p_ids) - cardinality(held));
END
$$
