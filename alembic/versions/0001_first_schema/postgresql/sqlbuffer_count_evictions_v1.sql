-- Counts steps that left a buffer. Deleting must work where the disk has no room for a count.
CREATE FUNCTION sqlbuffer_count_evictions_v1(p_buffer_id integer, p_reason text, p_writer uuid, p_n bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO eviction_counts (buffer_id, hour, reason, writer, n_steps)
    VALUES (p_buffer_id, floor(extract(epoch FROM clock_timestamp()) / 3600)::bigint, p_reason, p_writer, p_n)
    ON CONFLICT (buffer_id, hour, reason, writer) DO UPDATE SET n_steps = eviction_counts.n_steps + excluded.n_steps;
EXCEPTION WHEN disk_full THEN
    NULL;
END
$$
