-- Stores a row of plain SQL as a chunk of one step, without typed fields; returns its number.
CREATE FUNCTION sqlbuffer_insert_step_v1(p_row experiences) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    number bigint;
    priority double precision;
BEGIN
    number := sqlbuffer_reserve_v1(p_row.buffer_id, 1);
    IF p_row.id IS NOT NULL THEN
        -- Before any chunk is locked: deletions of steps lock the row of the buffer first.
        UPDATE buffers SET has_step_ids = true WHERE id = p_row.buffer_id AND NOT has_step_ids;
        INSERT INTO step_ids (buffer_id, seq, id) VALUES (p_row.buffer_id, number, p_row.id);
    END IF;
    SELECT coalesce(p_row.initial_priority, b.max_priority, 1.0) INTO priority FROM buffers b
    WHERE b.id = p_row.buffer_id AND b.has_priorities;
    INSERT INTO chunk_data (buffer_id, first_seq, n_steps, task_id, agent_id, step, rewards, ends, records, block_steps, payloads)
    SELECT p_row.buffer_id, number, 1, p_row.task_id, p_row.agent_id, p_row.step, float8send(p_row.reward_t),
        CASE p_row.terminated IS TRUE WHEN true THEN CASE p_row.truncated IS TRUE WHEN true THEN '\x03' ELSE '\x01' END
            ELSE CASE p_row.truncated IS TRUE WHEN true THEN '\x02' END END::bytea,
        '', 1, CASE WHEN count(*) > 0 THEN jsonb_build_array(jsonb_object_agg(g.name, g.value)) END
    FROM (VALUES ('state', p_row.state), ('actions', p_row.actions), ('messages', p_row.messages), ('extra', p_row.extra)) AS g(name, value)
    WHERE g.value IS NOT NULL;
    INSERT INTO chunks (
        buffer_id, first_seq, n_steps, id, task_id, task_name, agent_id, pre_agent, step, model_version, first_time, last_time,
        reward_t, adv_t, v_t, terminated, truncated, initial_priority
    )
    VALUES (
        p_row.buffer_id, number, 1, gen_random_uuid(), p_row.task_id, p_row.task_name, p_row.agent_id, p_row.pre_agent, p_row.step,
        p_row.model_version, p_row.execute_time, p_row.execute_time,
        CASE WHEN p_row.reward_t IS NOT NULL THEN ARRAY[p_row.reward_t] END,
        CASE WHEN p_row.adv_t IS NOT NULL THEN ARRAY[p_row.adv_t] END,
        CASE WHEN p_row.v_t IS NOT NULL THEN ARRAY[p_row.v_t] END,
        CASE WHEN p_row.terminated IS NOT NULL THEN ARRAY[p_row.terminated] END,
        CASE WHEN p_row.truncated IS NOT NULL THEN ARRAY[p_row.truncated] END,
        CASE WHEN priority IS NOT NULL THEN ARRAY[priority] END
    );
    RETURN number;
END
$$
