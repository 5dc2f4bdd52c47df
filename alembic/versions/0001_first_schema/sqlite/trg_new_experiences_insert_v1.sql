-- Inserts rows of plain SQL: numbers the row and sets its priority to the largest ever set.
CREATE TRIGGER trg_new_experiences_insert_v1 INSTEAD OF INSERT ON new_experiences
BEGIN
    INSERT INTO experiences (
        "key", buffer_id, seq, id, episode_id, task_id, task_name, agent_id, pre_agent, step, execute_time, state, actions, messages,
        extra, reward_t, adv_t, v_t, terminated, truncated, model_version, initial_priority
    )
    SELECT NEW.buffer_id << 40 | n.seq, NEW.buffer_id, n.seq, NEW.id, NEW.episode_id, NEW.task_id, NEW.task_name, NEW.agent_id, NEW.pre_agent,
        NEW.step, NEW.execute_time, NEW.state, NEW.actions, NEW.messages, NEW.extra, NEW.reward_t, NEW.adv_t, NEW.v_t,
        NEW.terminated, NEW.truncated, NEW.model_version,
        (SELECT coalesce(max_priority, 1.0) FROM buffers WHERE id = NEW.buffer_id AND has_priorities)
    FROM (SELECT coalesce((SELECT next_seq FROM buffers WHERE id = NEW.buffer_id), 1) AS seq) n;
END
