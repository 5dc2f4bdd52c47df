-- Deletes whole chunks, with their bytes and the ids and deletions of their steps, without
-- counting.
CREATE FUNCTION sqlbuffer_drop_chunks_v1(p_buffer_id integer, p_first_seqs bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    b buffers%ROWTYPE;
    seqs bigint[];
BEGIN
    IF p_first_seqs = '{}' THEN
        RETURN;
    END IF;
    PERFORM set_config('sqlbuffer.internal', 'on', true);
    SELECT * INTO b FROM buffers WHERE id = p_buffer_id;
    IF b.has_step_ids OR b.has_deleted THEN
        seqs := ARRAY(
            SELECT c.first_seq + g FROM chunks c CROSS JOIN LATERAL generate_series(0, c.n_steps - 1) AS g
            WHERE c.buffer_id = p_buffer_id AND c.first_seq = ANY (p_first_seqs));
        DELETE FROM step_ids WHERE buffer_id = p_buffer_id AND seq = ANY (seqs);
        DELETE FROM deleted_steps WHERE buffer_id = p_buffer_id AND seq = ANY (seqs);
    END IF;
    DELETE FROM chunks WHERE buffer_id = p_buffer_id AND first_seq = ANY (p_first_seqs);
    DELETE FROM chunk_data WHERE buffer_id = p_buffer_id AND first_seq = ANY (p_first_seqs);
    PERFORM set_config('sqlbuffer.internal', '', true);
END
$$
