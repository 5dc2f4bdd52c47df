-- Inserts rows by the name of the buffer; makes the episode that a row names first. The refused columns are looked up or made by the
-- database.
CREATE TRIGGER trg_v_experiences_insert_v1 INSTEAD OF INSERT ON v_experiences
BEGIN
    SELECT RAISE(ABORT, 'sqlbuffer: a row is inserted without seq, first_seq, session_id, executed_at, inserted_at, fields, special_numbers, attempt and t')
    WHERE coalesce(NEW.seq, NEW.first_seq, NEW.session_id, NEW.executed_at, NEW.inserted_at, NEW.fields, NEW.special_numbers, NEW.attempt, NEW.t) IS NOT NULL;
    SELECT RAISE(ABORT, 'sqlbuffer: no buffer with this name')
    WHERE NOT EXISTS (SELECT 1 FROM buffers WHERE name = NEW.buffer);
    SELECT RAISE(ABORT, 'sqlbuffer: group_id names rollouts that belong together: give the episode_id of the rollout too')
    WHERE NEW.group_id IS NOT NULL AND NEW.episode_id IS NULL;
    SELECT RAISE(ABORT, 'sqlbuffer: parent_id names the episode that an episode came from: give the episode_id of the new one too')
    WHERE NEW.parent_id IS NOT NULL AND NEW.episode_id IS NULL;
    SELECT RAISE(ABORT, 'sqlbuffer: an episode cannot be its own parent') WHERE NEW.parent_id = NEW.episode_id;
    INSERT OR IGNORE INTO episodes (buffer_id, "key", task_id, agent_id, group_id, parent_id, model_version)
    SELECT id, NEW.episode_id, NEW.task_id, NEW.agent_id, NEW.group_id, NEW.parent_id, NEW.model_version
    FROM buffers WHERE name = NEW.buffer AND NEW.episode_id IS NOT NULL;
    SELECT RAISE(ABORT, 'sqlbuffer: the episode belongs to another group')
    FROM buffers b JOIN episodes p ON p.buffer_id = b.id AND p."key" = NEW.episode_id AND p.task_id = NEW.task_id
    WHERE b.name = NEW.buffer AND NEW.group_id IS NOT NULL AND p.group_id IS NOT NEW.group_id;
    SELECT RAISE(ABORT, 'sqlbuffer: the episode has another parent')
    FROM buffers b JOIN episodes p ON p.buffer_id = b.id AND p."key" = NEW.episode_id AND p.task_id = NEW.task_id
    WHERE b.name = NEW.buffer AND NEW.parent_id IS NOT NULL AND p.parent_id IS NOT NEW.parent_id;
    INSERT INTO new_experiences (
        buffer_id, id, episode_id, task_id, task_name, agent_id, pre_agent, step, execute_time, state, actions, messages, extra,
        reward_t, adv_t, v_t, terminated, truncated, model_version
    )
    SELECT id, NEW.id, (SELECT p.id FROM episodes p WHERE p.buffer_id = buffers.id AND p."key" = NEW.episode_id AND p.task_id = NEW.task_id), NEW.task_id, NEW.task_name, NEW.agent_id, NEW.pre_agent, NEW.step, NEW.execute_time, NEW.state, NEW.actions,
        NEW.messages, NEW.extra, NEW.reward, NEW.advantage, NEW.value, NEW.terminated, NEW.truncated, NEW.model_version
    FROM buffers WHERE name = NEW.buffer;
END
