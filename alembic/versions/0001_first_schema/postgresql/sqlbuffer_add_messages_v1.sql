-- Stores messages that a row up to p_high is about to use; returns their ids, in order, which are
-- consecutive unless other writers store some as well. Writers take
-- them in the order of their hashes, so that none waits for another one that waits for it.
CREATE FUNCTION sqlbuffer_add_messages_v1(p_buffer_id integer, p_hashes bytea[], p_contents text[], p_high bigint) RETURNS integer[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    half bigint := (SELECT greatest(coalesce(b.max_capacity, 131072) / 2, 1) FROM buffers b WHERE b.id = p_buffer_id);
    ids integer[];
BEGIN
    ids := ARRAY(SELECT nextval('messages_id_seq')::integer FROM generate_series(1, cardinality(p_hashes)));
    INSERT INTO messages AS k (buffer_id, id, hash, content, last_seq)
    SELECT p_buffer_id, w.id, w.hash, w.content::json, p_high + half FROM unnest(ids, p_hashes, p_contents) AS w(id, hash, content) ORDER BY w.hash
    ON CONFLICT (buffer_id, hash) DO UPDATE SET last_seq = greatest(k.last_seq, excluded.last_seq);
    RETURN ARRAY(
        SELECT (SELECT k.id FROM messages k WHERE k.buffer_id = p_buffer_id AND k.hash = w.hash)
        FROM unnest(p_hashes) WITH ORDINALITY AS w(hash, place) ORDER BY w.place);
END
$$
