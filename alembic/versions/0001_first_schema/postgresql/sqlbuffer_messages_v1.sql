-- Returns a list of messages as JSON text, from the ids of those that are in the table, in order. For
-- the id 0 it is the message at this place of p_own. An ORDER BY would copy each message once more:
-- unnest returns the ids in their order.
CREATE FUNCTION sqlbuffer_messages_v1(p_buffer_id integer, p_ids integer[], p_own jsonb) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg(coalesce(CASE i.id WHEN 0 THEN (p_own -> (i.place - 1)::integer)::text
            ELSE (SELECT m.content::text FROM messages m WHERE m.buffer_id = p_buffer_id AND m.id = i.id) END, 'null'), ', '), '') || ']'
        FROM unnest(p_ids) WITH ORDINALITY AS i(id, place)
    );
END
$$
