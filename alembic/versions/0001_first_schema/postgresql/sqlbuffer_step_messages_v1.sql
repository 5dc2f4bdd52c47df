-- Returns the messages of a step of a chunk, from its JSON in chunk_data.
CREATE FUNCTION sqlbuffer_step_messages_v1(p_buffer_id integer, p_payload jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path FROM CURRENT AS $$
BEGIN
    IF p_payload ? 'message_ids' THEN
        RETURN sqlbuffer_messages_v1(
            p_buffer_id, ARRAY(SELECT e.id::integer FROM jsonb_array_elements_text(p_payload -> 'message_ids') WITH ORDINALITY AS e(id, place) ORDER BY e.place),
            p_payload -> 'messages')::jsonb;
    END IF;
    RETURN p_payload -> 'messages';
END
$$
