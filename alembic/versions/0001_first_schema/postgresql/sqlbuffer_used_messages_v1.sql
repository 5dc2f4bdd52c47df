-- Returns the ids of the messages that steps use, and of no deleted steps.
CREATE FUNCTION sqlbuffer_used_messages_v1(p_buffer_id integer) RETURNS SETOF integer
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT u.id FROM experiences e CROSS JOIN LATERAL generate_series(1, cardinality(e.message_ids), 2) AS r(place)
    CROSS JOIN LATERAL generate_series(e.message_ids[r.place], e.message_ids[r.place] + e.message_ids[r.place + 1] - 1) AS u(id)
    WHERE e.buffer_id = p_buffer_id AND e.message_ids[r.place] > 0
    UNION
    SELECT u.id FROM chunk_data d CROSS JOIN LATERAL jsonb_array_elements(d.payloads) WITH ORDINALITY AS p(step, place)
    CROSS JOIN LATERAL generate_series(0, jsonb_array_length(p.step -> 'message_ids') - 1, 2) AS r(place)
    CROSS JOIN LATERAL (SELECT (p.step -> 'message_ids' ->> r.place)::integer AS first, (p.step -> 'message_ids' ->> r.place + 1)::integer AS n) f
    CROSS JOIN LATERAL generate_series(f.first, f.first + f.n - 1) AS u(id)
    WHERE f.first > 0 AND d.buffer_id = p_buffer_id AND NOT EXISTS (
        SELECT 1 FROM deleted_steps g WHERE g.buffer_id = d.buffer_id AND g.seq = d.first_seq + p.place - 1);
END
$$
