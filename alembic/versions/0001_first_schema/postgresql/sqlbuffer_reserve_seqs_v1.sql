-- Returns the ids that the buffer holds, and reserves consecutive numbers for the others: the first
-- one, null if the buffer holds all. Stores the largest given priority, and returns the priority of
-- rows without a given one. The id of a row that has left the window is free again. Stores the id
-- of the write if one is given, which no earlier attempt may have.
CREATE FUNCTION sqlbuffer_reserve_seqs_v1(
    p_buffer_id integer, p_ids text[], p_priorities double precision[] DEFAULT NULL,
    p_write_id uuid DEFAULT NULL, p_keep_s double precision DEFAULT NULL,
    OUT held text[], OUT first_seq bigint, OUT priority double precision
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    low bigint;
    gone bigint[];
    n_new bigint;
    given double precision;
    held_seq bigint;
BEGIN
    SELECT w.low_seq INTO low FROM v_windows w WHERE w.buffer_id = p_buffer_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'sqlbuffer: no buffer with buffer_id %', p_buffer_id USING ERRCODE = 'foreign_key_violation';
    END IF;
    IF p_write_id IS NOT NULL THEN
        INSERT INTO applied_writes (buffer_id, write_id, kept_until)
        VALUES (p_buffer_id, p_write_id, clock_timestamp() + make_interval(secs => p_keep_s));
    END IF;
    SELECT coalesce(array_agg(e.id) FILTER (WHERE e.seq > low), '{}'), coalesce(array_agg(e.seq) FILTER (WHERE e.seq <= low), '{}')
    INTO held, gone
    FROM unnest(p_ids) AS g(id) CROSS JOIN LATERAL (
        -- A range of one id, in order: only the index of ids gives that. For an equal id, a session
        -- keeps a plan from when the table was empty, which reads all rows of the buffer.
        SELECT x.id, x.seq FROM experiences x
        WHERE x.buffer_id = p_buffer_id AND x.id >= g.id AND x.id <= g.id ORDER BY x.id LIMIT 1
    ) AS e;
    IF p_priorities IS NOT NULL THEN
        -- Before any row is locked: deletions of rows lock the row of the buffer first.
        SELECT max(g.priority) INTO given FROM unnest(p_ids, p_priorities) AS g(id, priority) WHERE g.id <> ALL (held);
        UPDATE buffers b SET max_priority = given
        WHERE b.id = p_buffer_id AND (b.max_priority < given OR b.max_priority IS NULL AND given IS NOT NULL);
    END IF;
    IF gone <> '{}' THEN
        -- Rows that are held for a copy lose only their ids.
        held_seq := sqlbuffer_held_v1(p_buffer_id);
        UPDATE experiences SET id = NULL WHERE buffer_id = p_buffer_id AND seq = ANY (gone) AND seq > held_seq;
        PERFORM sqlbuffer_remove_v1(p_buffer_id, ARRAY(
            SELECT g.seq FROM unnest(gone) AS g(seq) WHERE (g.seq > held_seq) IS NOT TRUE), true);
    END IF;
    n_new := cardinality(p_ids) - cardinality(held);
    IF n_new > 0 THEN
        first_seq := sqlbuffer_reserve_v1(p_buffer_id, n_new);
    END IF;
    SELECT CASE WHEN b.has_priorities THEN coalesce(b.max_priority, 1.0) END INTO priority FROM buffers b WHERE b.id = p_buffer_id;
END
$$
