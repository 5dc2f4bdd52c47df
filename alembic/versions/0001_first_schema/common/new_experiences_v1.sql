CREATE VIEW new_experiences AS
SELECT buffer_id, id, episode_id, task_id, task_name, agent_id, pre_agent, step, execute_time, state, actions, messages, extra,
    reward_t, adv_t, v_t, terminated, truncated, model_version
FROM experiences
