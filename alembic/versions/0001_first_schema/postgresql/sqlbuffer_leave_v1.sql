-- Removes some of the whole tasks or ended episodes that max_age or max_bytes has leave; returns how
-- many rows left because of each. Rows without an episode leave alone.
CREATE FUNCTION sqlbuffer_leave_v1(p_buffer_id integer, p_limit integer, OUT n_aged bigint, OUT n_oversize bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b buffers%ROWTYPE;
    age bigint;
    bound bigint;
    victim record;
    n_gone bigint;
    alone bigint[];
BEGIN
    n_aged := 0;
    n_oversize := 0;
    SELECT * INTO b FROM buffers WHERE id = p_buffer_id AND evict_unit <> 'row' AND NOT is_copying FOR NO KEY UPDATE;
    IF NOT FOUND OR (b.has_holds AND sqlbuffer_held_v1(p_buffer_id) IS NOT NULL) THEN
        RETURN;
    END IF;
    SELECT r.age_seq, greatest(r.age_seq, r.bytes_seq) INTO age, bound FROM retention_bounds r WHERE r.buffer_id = p_buffer_id;
    IF bound IS NULL THEN
        RETURN;
    END IF;
    IF b.evict_unit = 'task' THEN
        FOR victim IN
            SELECT t.task_id, t.last_seq FROM tasks t WHERE t.buffer_id = p_buffer_id AND t.last_seq <= bound ORDER BY t.last_seq LIMIT p_limit
        LOOP
            n_gone := sqlbuffer_remove_v1(p_buffer_id, CASE WHEN b.has_chunks THEN ARRAY(
                SELECT seq FROM step_numbers WHERE buffer_id = p_buffer_id AND task_id = victim.task_id) ELSE ARRAY(
                SELECT seq FROM experiences WHERE buffer_id = p_buffer_id AND task_id = victim.task_id) END, true);
            IF n_gone = 0 THEN
                DELETE FROM tasks WHERE buffer_id = p_buffer_id AND task_id = victim.task_id;
            ELSIF victim.last_seq <= age THEN
                n_aged := n_aged + n_gone;
            ELSE
                n_oversize := n_oversize + n_gone;
            END IF;
        END LOOP;
        RETURN;
    END IF;
    FOR victim IN
        SELECT v.episode_id, m.last_seq FROM (
            SELECT DISTINCT e.episode_id FROM experiences e WHERE NOT b.has_chunks AND e.buffer_id = p_buffer_id AND e.seq <= bound AND e.episode_id IS NOT NULL
            UNION
            SELECT DISTINCT c.episode_id FROM chunks c WHERE b.has_chunks AND c.buffer_id = p_buffer_id AND c.first_seq <= bound AND c.episode_id IS NOT NULL
        ) v JOIN episode_states s ON s.id = v.episode_id AND s.status <> 'open'
        CROSS JOIN LATERAL (
            SELECT greatest(
                (SELECT max(e.seq) FROM experiences e WHERE e.buffer_id = p_buffer_id AND e.episode_id = v.episode_id),
                (SELECT max(c.first_seq + c.n_steps - 1) FROM chunks c WHERE c.buffer_id = p_buffer_id AND c.episode_id = v.episode_id)) AS last_seq
        ) m
        WHERE m.last_seq <= bound ORDER BY m.last_seq LIMIT p_limit
    LOOP
        n_gone := sqlbuffer_remove_v1(p_buffer_id, CASE WHEN b.has_chunks THEN ARRAY(
            SELECT seq FROM step_numbers WHERE buffer_id = p_buffer_id AND episode_id = victim.episode_id) ELSE ARRAY(
            SELECT seq FROM experiences WHERE buffer_id = p_buffer_id AND episode_id = victim.episode_id) END, true);
        IF victim.last_seq <= age THEN
            n_aged := n_aged + n_gone;
        ELSE
            n_oversize := n_oversize + n_gone;
        END IF;
    END LOOP;
    alone := CASE WHEN b.has_chunks THEN ARRAY(
        SELECT c.first_seq + g FROM (
            SELECT x.first_seq, x.n_steps FROM chunks x
            WHERE x.buffer_id = p_buffer_id AND x.episode_id IS NULL AND x.first_seq + x.n_steps - 1 <= bound ORDER BY x.first_seq LIMIT p_limit
        ) c CROSS JOIN LATERAL generate_series(0, c.n_steps - 1) AS g) ELSE ARRAY(
        SELECT e.seq FROM experiences e
        WHERE e.buffer_id = p_buffer_id AND e.episode_id IS NULL AND e.seq <= bound ORDER BY e.seq LIMIT 64 * p_limit) END;
    n_gone := sqlbuffer_remove_v1(p_buffer_id, ARRAY(SELECT a FROM unnest(alone) AS u(a) WHERE a <= age), true);
    n_aged := n_aged + n_gone;
    n_oversize := n_oversize + sqlbuffer_remove_v1(p_buffer_id, ARRAY(SELECT a FROM unnest(alone) AS u(a) WHERE (a <= age) IS NOT TRUE), true);
END
$$
