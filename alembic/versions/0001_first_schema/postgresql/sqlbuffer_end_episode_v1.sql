-- Ends an open episode, which the transaction has locked.
CREATE FUNCTION sqlbuffer_end_episode_v1(
    p_buffer_id integer, p_id bigint, p_status text, p_reward double precision, p_final bytea
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE episodes e
    SET status = p_status, reward = CASE WHEN e.verdicts IS NULL THEN coalesce(p_reward, e.reward) ELSE e.reward END,
        final_arrays = coalesce(p_final, e.final_arrays), is_implied = false, ended_at = now(),
        "return" = r."return", first_seq = r.first_seq, last_seq = r.last_seq,
        length = CASE WHEN e.next_t > 0 THEN e.next_t ELSE coalesce(
            (SELECT max(x.t) + 1 FROM experiences x WHERE x.buffer_id = p_buffer_id AND x.episode_id = p_id), r.length, 0) END
    FROM episodes o
    LEFT JOIN rollout_stats r ON r.buffer_id = p_buffer_id AND r.task_id = o.task_id AND r.episode_id = o.id
    WHERE e.id = p_id AND o.id = p_id;
END
$$
