CREATE VIEW v_experiences AS
SELECT w.buffer, e.seq, e.id, e.task_id, e.task_name, e.agent_id, e.pre_agent, p.key AS episode_id, e.step,
    CASE WHEN e.execute_time BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(e.execute_time) END AS executed_at,
    e.execute_time, e.inserted_at,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.reward_t) ELSE e.reward_t END AS reward,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.adv_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.adv_t) ELSE e.adv_t END AS advantage,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.v_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.v_t) ELSE e.v_t END AS value,
    e.terminated, e.truncated,
    e.model_version, s.key AS session_id, e.state, e.actions, e.messages,
    CASE
        WHEN w.has_labels THEN coalesce(
            (SELECT CASE WHEN l.extra -> '$none' IS NULL THEN l.extra - '$reals' END FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq),
            CASE WHEN e.extra -> '$none' IS NULL THEN e.extra - '$reals' END
        )
        WHEN e.extra -> '$none' IS NULL THEN e.extra - '$reals'
    END AS extra,
    e.fields,
    CASE
        WHEN w.has_labels THEN coalesce((SELECT l.extra FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.extra) -> '$reals'
        ELSE e.extra -> '$reals'
    END AS special_numbers
FROM v_windows w
JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
LEFT JOIN episodes p ON p.id = e.episode_id
LEFT JOIN sessions s ON s.id = e.session_id
