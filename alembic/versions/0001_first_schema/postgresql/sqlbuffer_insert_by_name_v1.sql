-- Inserts rows by the name of the buffer. The refused columns are looked up or made by the
-- database.
CREATE FUNCTION sqlbuffer_insert_by_name_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b buffers%ROWTYPE;
BEGIN
    IF num_nonnulls(NEW.seq, NEW.first_seq, NEW.episode_id, NEW.session_id, NEW.executed_at, NEW.inserted_at, NEW.fields, NEW.special_numbers) > 0 THEN
        RAISE EXCEPTION 'sqlbuffer: a row is inserted without seq, first_seq, episode_id, session_id, executed_at, inserted_at, fields and special_numbers'
        USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    SELECT * INTO b FROM buffers WHERE name = NEW.buffer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'sqlbuffer: no buffer named %', NEW.buffer USING ERRCODE = 'foreign_key_violation';
    END IF;
    INSERT INTO experiences (
        buffer_id, id, task_id, task_name, agent_id, pre_agent, step, execute_time, state, actions, messages, extra,
        reward_t, adv_t, v_t, terminated, truncated, model_version
    )
    VALUES (
        b.id, NEW.id, NEW.task_id, NEW.task_name, NEW.agent_id, NEW.pre_agent, NEW.step, NEW.execute_time, NEW.state, NEW.actions,
        NEW.messages, NEW.extra, NEW.reward, NEW.advantage, NEW.value, NEW.terminated, NEW.truncated, NEW.model_version
    )
    RETURNING seq, seq, inserted_at INTO NEW.seq, NEW.first_seq, NEW.inserted_at;
    RETURN NEW;
END
$$
