-- Evicts whole ended episodes, the one that began first before others, until the buffer is within
-- its limit; then the oldest rows, until they fit. Open episodes stay, so a buffer may hold too
-- many of those. The caller holds the lock on the row of the buffer.
CREATE FUNCTION sqlbuffer_evict_episodes_v1(p_buffer_id integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b buffers%ROWTYPE;
    victim bigint;
BEGIN
    IF EXISTS (SELECT 1 FROM buffers WHERE id = p_buffer_id AND has_holds) THEN
        IF sqlbuffer_held_v1(p_buffer_id) IS NOT NULL THEN
            RETURN;
        END IF;
        PERFORM sqlbuffer_end_holds_v1(p_buffer_id);
    END IF;
    LOOP
        SELECT * INTO b FROM buffers WHERE id = p_buffer_id;
        EXIT WHEN (b.live_episodes > b.max_episodes) IS NOT TRUE;
        SELECT s.id INTO victim FROM episode_states s
        WHERE s.buffer_id = p_buffer_id AND s.n_rows > 0 AND s.status <> 'open' ORDER BY s.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        -- One table or the other: the planner would read all rows of a table that was empty when it
        -- was analyzed.
        IF sqlbuffer_remove_v1(p_buffer_id, CASE WHEN b.has_chunks THEN ARRAY(
            SELECT seq FROM step_numbers WHERE buffer_id = p_buffer_id AND episode_id = victim) ELSE ARRAY(
            SELECT seq FROM experiences WHERE buffer_id = p_buffer_id AND episode_id = victim) END, true) = 0
        THEN
            -- Its rows were removed without the triggers; without this update the loop would not
            -- end.
            UPDATE episodes SET n_rows = 0 WHERE id = victim;
            UPDATE buffers SET live_episodes = live_episodes - 1 WHERE id = p_buffer_id;
        END IF;
    END LOOP;
    IF b.live_rows > b.max_capacity THEN
        PERFORM sqlbuffer_remove_v1(p_buffer_id, ARRAY(
            SELECT seq FROM sqlbuffer_oldest_v1(p_buffer_id, b.live_rows - b.max_capacity) AS o(seq)), true);
    END IF;
END
$$
