-- Returns the ids that steps of chunks have already, with their numbers. The id of a step that has
-- left the window, or was deleted, is free again. Notes that the buffer has such ids: the caller
-- stores some.
CREATE FUNCTION sqlbuffer_held_ids_v1(p_buffer_id integer, p_ids text[], OUT id text, OUT seq bigint) RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    low bigint;
BEGIN
    UPDATE buffers b SET has_step_ids = true WHERE b.id = p_buffer_id AND NOT b.has_step_ids;
    SELECT w.low_seq INTO low FROM v_windows w WHERE w.buffer_id = p_buffer_id;
    -- A range of one id, in order: only the index of ids gives that, for any size of the table that
    -- the session expects.
    DELETE FROM step_ids d WHERE d.buffer_id = p_buffer_id AND d.seq = ANY (ARRAY(
        SELECT s.seq FROM unnest(p_ids) AS g(id) CROSS JOIN LATERAL (
            SELECT x.seq FROM step_ids x
            WHERE x.buffer_id = p_buffer_id AND x.id >= g.id AND x.id <= g.id ORDER BY x.id LIMIT 1
        ) AS s
        WHERE s.seq <= low OR EXISTS (
            SELECT 1 FROM deleted_steps x WHERE x.buffer_id = p_buffer_id AND x.seq = s.seq OFFSET 0)));
    RETURN QUERY
    SELECT s.id, s.seq FROM unnest(p_ids) AS g(id) CROSS JOIN LATERAL (
        SELECT x.id, x.seq FROM step_ids x
        WHERE x.buffer_id = p_buffer_id AND x.id >= g.id AND x.id <= g.id ORDER BY x.id LIMIT 1
    ) AS s;
END
$$
