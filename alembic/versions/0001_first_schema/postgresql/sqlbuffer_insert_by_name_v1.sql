-- Inserts rows by the name of the buffer; makes the episode that a row names first. The refused columns are looked up or made by the
-- database.
CREATE FUNCTION sqlbuffer_insert_by_name_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b buffers%ROWTYPE;
    v_episode_id bigint;
    v_group_id text;
    v_parent_id text;
BEGIN
    IF num_nonnulls(NEW.seq, NEW.first_seq, NEW.session_id, NEW.executed_at, NEW.inserted_at, NEW.fields, NEW.special_numbers, NEW.attempt, NEW.t) > 0 THEN
        RAISE EXCEPTION 'sqlbuffer: a row is inserted without seq, first_seq, session_id, executed_at, inserted_at, fields, special_numbers, attempt and t'
        USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    SELECT * INTO b FROM buffers WHERE name = NEW.buffer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'sqlbuffer: no buffer named %', NEW.buffer USING ERRCODE = 'foreign_key_violation';
    END IF;
    IF NEW.episode_id IS NOT NULL THEN
        INSERT INTO episodes (buffer_id, key, task_id, agent_id, group_id, parent_id, model_version)
        VALUES (b.id, NEW.episode_id, NEW.task_id, NEW.agent_id, NEW.group_id, NEW.parent_id, NEW.model_version) ON CONFLICT DO NOTHING;
        SELECT p.id, p.group_id, p.parent_id INTO v_episode_id, v_group_id, v_parent_id FROM episodes p
        WHERE p.buffer_id = b.id AND p.key = NEW.episode_id AND p.task_id = NEW.task_id;
        IF NEW.group_id IS NOT NULL AND v_group_id IS DISTINCT FROM NEW.group_id THEN
            RAISE EXCEPTION 'sqlbuffer: the episode belongs to another group' USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF NEW.parent_id IS NOT NULL AND v_parent_id IS DISTINCT FROM NEW.parent_id THEN
            RAISE EXCEPTION 'sqlbuffer: the episode has another parent' USING ERRCODE = 'integrity_constraint_violation';
        END IF;
    ELSIF NEW.parent_id IS NOT NULL THEN
        RAISE EXCEPTION 'sqlbuffer: parent_id names the episode that an episode came from: give the episode_id of the new one too'
        USING ERRCODE = 'integrity_constraint_violation';
    ELSIF NEW.group_id IS NOT NULL THEN
        RAISE EXCEPTION 'sqlbuffer: group_id names rollouts that belong together: give the episode_id of the rollout too'
        USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    INSERT INTO experiences (
        buffer_id, id, episode_id, task_id, task_name, agent_id, pre_agent, step, execute_time, state, actions, messages, extra,
        reward_t, adv_t, v_t, terminated, truncated, model_version
    )
    VALUES (
        b.id, NEW.id, v_episode_id, NEW.task_id, NEW.task_name, NEW.agent_id, NEW.pre_agent, NEW.step, NEW.execute_time, NEW.state, NEW.actions,
        NEW.messages, NEW.extra, NEW.reward, NEW.advantage, NEW.value, NEW.terminated, NEW.truncated, NEW.model_version
    )
    RETURNING seq, seq, inserted_at INTO NEW.seq, NEW.first_seq, NEW.inserted_at;
    RETURN NEW;
END
$$
