-- Makes the id of an ended episode free if all its steps have left; returns the status and length
-- of an episode that keeps its id.
CREATE FUNCTION sqlbuffer_free_episode_v1(p_buffer_id integer, p_key text, p_task_id text, OUT status text, OUT length integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    p episodes%ROWTYPE;
BEGIN
    SELECT * INTO p FROM episodes WHERE buffer_id = p_buffer_id AND key = p_key AND task_id = p_task_id;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p.status <> 'open' AND NOT EXISTS (
        SELECT 1 FROM step_numbers e
        WHERE e.buffer_id = p_buffer_id AND e.episode_id = p.id
          AND e.seq > (SELECT w.low_seq FROM v_windows w WHERE w.buffer_id = p_buffer_id)
    ) THEN
        DELETE FROM episodes WHERE id = p.id;
        RETURN;
    END IF;
    status := p.status;
    length := p.length;
END
$$
