-- Evicts whole tasks, oldest last write first, until the buffer fits; a single task loses its own
-- oldest rows. The caller holds the lock on the row of the buffer.
CREATE FUNCTION sqlbuffer_evict_tasks_v1(p_buffer_id integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    surplus bigint;
    in_chunks boolean;
    victims text[];
BEGIN
    IF EXISTS (SELECT 1 FROM buffers WHERE id = p_buffer_id AND has_holds) THEN
        IF sqlbuffer_held_v1(p_buffer_id) IS NOT NULL THEN
            RETURN;
        END IF;
        PERFORM sqlbuffer_end_holds_v1(p_buffer_id);
    END IF;
    LOOP
        SELECT live_rows - max_capacity, has_chunks INTO surplus, in_chunks FROM buffers WHERE id = p_buffer_id;
        EXIT WHEN surplus IS NULL OR surplus <= 0;
        SELECT array_agg(v.task_id) INTO victims
        FROM (SELECT task_id FROM tasks WHERE buffer_id = p_buffer_id ORDER BY last_seq LIMIT 2) v;
        EXIT WHEN victims IS NULL;
        IF cardinality(victims) = 1 THEN
            PERFORM sqlbuffer_remove_v1(p_buffer_id, ARRAY(
                SELECT seq FROM sqlbuffer_oldest_v1(p_buffer_id, surplus) AS o(seq)), true);
            EXIT;
        END IF;
        -- One table or the other: the planner would read all rows of a table that was empty when it
        -- was analyzed.
        IF sqlbuffer_remove_v1(p_buffer_id, CASE WHEN in_chunks THEN ARRAY(
            SELECT seq FROM step_numbers WHERE buffer_id = p_buffer_id AND task_id = victims[1]) ELSE ARRAY(
            SELECT seq FROM experiences WHERE buffer_id = p_buffer_id AND task_id = victims[1]) END, true) = 0
        THEN
            -- Its rows were removed without the triggers; without this delete the loop would not
            -- end.
            DELETE FROM tasks WHERE buffer_id = p_buffer_id AND task_id = victims[1];
        END IF;
    END LOOP;
END
$$
