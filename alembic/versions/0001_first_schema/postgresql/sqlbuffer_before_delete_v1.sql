-- Before a DELETE or TRUNCATE of plain SQL: the window keeps its lower end, and counts in other
-- tables are marked to start again. Followers learn that rows were deleted, but not which ones:
-- collecting them would slow down every eviction.
CREATE FUNCTION sqlbuffer_before_delete_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    -- In one order: two of these running together must not wait for each other.
    PERFORM 1 FROM buffers ORDER BY id FOR NO KEY UPDATE;
    UPDATE buffers b SET deletions = b.deletions + 1, low_seq = greatest(b.low_seq, w.low_seq)
    FROM v_windows w WHERE w.buffer_id = b.id;
    INSERT INTO change_log (buffer_id, kind) SELECT id, 'deleted' FROM buffers ORDER BY id;
    RETURN NULL;
END
$$
