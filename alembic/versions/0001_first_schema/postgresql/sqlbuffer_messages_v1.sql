-- Returns a list of messages as JSON text. p_ids has runs of their ids: a first id, their number, and so
-- on. After a 0 comes the place of a message in p_own.
CREATE FUNCTION sqlbuffer_messages_v1(p_buffer_id integer, p_ids integer[], p_own jsonb) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path FROM CURRENT AS $$
BEGIN
    -- The rows come in the order of the runs. An ORDER BY would copy each message once more.
    RETURN (
        SELECT '[' || coalesce(string_agg(m.content, ', '), '') || ']'
        FROM generate_series(1, cardinality(p_ids), 2) AS r(place) CROSS JOIN LATERAL (
            SELECT (p_own -> p_ids[r.place + 1])::text AS content WHERE p_ids[r.place] = 0
            UNION ALL
            (SELECT k.content::text FROM messages k
            WHERE p_ids[r.place] > 0 AND k.buffer_id = p_buffer_id AND k.id >= p_ids[r.place] AND k.id < p_ids[r.place] + p_ids[r.place + 1]
            ORDER BY k.buffer_id, k.id)
        ) m
    );
END
$$
