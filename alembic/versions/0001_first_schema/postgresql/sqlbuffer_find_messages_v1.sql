-- Returns the ids of messages by their hashes, in order, and null for those that are missing. A row up
-- to p_high is about to use them. Until the transaction ends they are locked in such a way that no
-- process removes them, and writers do not wait for each other.
CREATE FUNCTION sqlbuffer_find_messages_v1(p_buffer_id integer, p_hashes bytea[], p_high bigint) RETURNS integer[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    half bigint := (SELECT greatest(coalesce(b.max_capacity, 131072) / 2, 1) FROM buffers b WHERE b.id = p_buffer_id);
    found_ids integer[];
    old_ids integer[];
    aging_ids integer[];
BEGIN
    SELECT array_agg(m.id ORDER BY w.place), array_agg(m.id ORDER BY m.id) FILTER (WHERE m.last_seq < p_high),
        array_agg(m.id) FILTER (WHERE m.last_seq >= p_high AND m.last_seq < p_high + half / 2)
    INTO found_ids, old_ids, aging_ids
    FROM unnest(p_hashes) WITH ORDINALITY AS w(hash, place) LEFT JOIN LATERAL (
        SELECT k.id, k.last_seq FROM messages k WHERE k.buffer_id = p_buffer_id AND k.hash = w.hash FOR KEY SHARE
    ) m ON true;
    -- The sweep could remove these after the commit, before the rows have left.
    IF old_ids IS NOT NULL THEN
        PERFORM 1 FROM messages k WHERE k.buffer_id = p_buffer_id AND k.id = ANY (old_ids) ORDER BY k.id FOR NO KEY UPDATE;
        UPDATE messages k SET last_seq = greatest(k.last_seq, p_high + half) WHERE k.buffer_id = p_buffer_id AND k.id = ANY (old_ids);
    END IF;
    -- These last a while: where another writer has the lock, that one or a later one does it.
    IF aging_ids IS NOT NULL THEN
        UPDATE messages k SET last_seq = greatest(k.last_seq, p_high + half) WHERE k.buffer_id = p_buffer_id AND k.id = ANY (ARRAY(
            SELECT a.id FROM messages a WHERE a.buffer_id = p_buffer_id AND a.id = ANY (aging_ids) FOR NO KEY UPDATE SKIP LOCKED));
    END IF;
    RETURN found_ids;
END
$$
