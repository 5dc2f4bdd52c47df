-- Inserts rows by the name of the buffer. The refused columns are looked up or made by the
-- database.
CREATE FUNCTION sqlbuffer_insert_by_name_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b buffers%ROWTYPE;
    given experiences%ROWTYPE;
BEGIN
    IF num_nonnulls(NEW.seq, NEW.first_seq, NEW.episode_id, NEW.session_id, NEW.executed_at, NEW.inserted_at, NEW.fields, NEW.special_numbers) > 0 THEN
        RAISE EXCEPTION 'sqlbuffer: a row is inserted without seq, first_seq, episode_id, session_id, executed_at, inserted_at, fields and special_numbers'
        USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    SELECT * INTO b FROM buffers WHERE name = NEW.buffer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'sqlbuffer: no buffer named %', NEW.buffer USING ERRCODE = 'foreign_key_violation';
    END IF;
    IF b.has_chunks THEN
        given.buffer_id := b.id;
        given.id := NEW.id;
        given.task_id := NEW.task_id;
        given.task_name := NEW.task_name;
        given.agent_id := NEW.agent_id;
        given.pre_agent := NEW.pre_agent;
        given.step := NEW.step;
        given.execute_time := NEW.execute_time;
        given.state := NEW.state;
        given.actions := NEW.actions;
        given.messages := NEW.messages;
        given.extra := NEW.extra;
        given.reward_t := NEW.reward;
        given.adv_t := NEW.advantage;
        given.v_t := NEW.value;
        given.terminated := NEW.terminated;
        given.truncated := NEW.truncated;
        given.model_version := NEW.model_version;
        NEW.seq := sqlbuffer_insert_step_v1(given);
        NEW.first_seq := NEW.seq;
        NEW.inserted_at := now();
        RETURN NEW;
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
