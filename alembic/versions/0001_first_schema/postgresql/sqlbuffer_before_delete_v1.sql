-- A DELETE or TRUNCATE typed by hand: the window keeps its lower end, and counts kept elsewhere are told to start anew.
-- Followers are told that rows were deleted, and not which: to collect them would slow every eviction down.
CREATE FUNCTION sqlbuffer_before_delete_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    -- First in one order: two of these at once must not wait for each other.
    PERFORM 1 FROM buffers ORDER BY id FOR NO KEY UPDATE;
    UPDATE buffers b SET deletions = b.deletions + 1, low_seq = greatest(b.low_seq, w.low_seq)
    FROM v_windows w WHERE w.buffer_id = b.id;
    INSERT INTO change_log (buffer_id, kind) SELECT id, 'deleted' FROM buffers ORDER BY id;
    RETURN NULL;
END
$$
