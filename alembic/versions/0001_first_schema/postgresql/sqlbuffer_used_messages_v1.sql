-- Returns the ids of the messages that steps use, and of no deleted steps.
CREATE FUNCTION sqlbuffer_used_messages_v1(p_buffer_id integer) RETURNS SETOF integer
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT u.id FROM experiences e CROSS JOIN LATERAL unnest(e.message_ids) AS u(id) WHERE e.buffer_id = p_buffer_id
    UNION
    SELECT u.id::integer FROM chunk_data d CROSS JOIN LATERAL jsonb_array_elements(d.payloads) WITH ORDINALITY AS p(step, place)
    CROSS JOIN LATERAL jsonb_array_elements_text(p.step -> 'message_ids') AS u(id)
    WHERE d.buffer_id = p_buffer_id AND NOT EXISTS (
        SELECT 1 FROM deleted_steps g WHERE g.buffer_id = d.buffer_id AND g.seq = d.first_seq + p.place - 1);
END
$$
