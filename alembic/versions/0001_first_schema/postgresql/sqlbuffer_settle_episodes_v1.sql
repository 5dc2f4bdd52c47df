-- Ends or opens episodes that got steps. Given is of each the place of the last of these steps. An episode without a writer is complete while its last step is terminated or
-- truncated. One that ended in another way takes no step, and neither does one that a lease holds or
-- has used, or that has lost steps to eviction.
CREATE FUNCTION sqlbuffer_settle_episodes_v1(
    p_buffer_id integer, p_ids bigint[], p_ts bigint[], p_ends boolean[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    p record;
    is_last boolean;
BEGIN
    FOR p IN
        SELECT e.id, e.key, e.task_id, e.status, e.is_implied, e.was_used, e.last_seq, r.first_seq, g.t, g.ends
        FROM unnest(p_ids, p_ts, p_ends) AS g(id, t, ends)
        JOIN episodes e ON e.id = g.id
        JOIN rollout_stats r ON r.buffer_id = e.buffer_id AND r.task_id = e.task_id AND r.episode_id = e.id
        WHERE e.status <> 'open' OR g.ends ORDER BY e.id
    LOOP
        IF p.status <> 'open' AND (
            NOT p.is_implied OR p.was_used
            OR p.first_seq <= (SELECT w.low_seq FROM v_windows w WHERE w.buffer_id = p_buffer_id)
            OR (p.first_seq <= p.last_seq AND NOT EXISTS (
                SELECT 1 FROM step_numbers s WHERE s.buffer_id = p_buffer_id AND s.episode_id = p.id AND s.seq <= p.last_seq))
            OR EXISTS (
                SELECT 1 FROM queue_items q
                WHERE q.buffer_id = p_buffer_id AND q.episode_id = p.id AND q.leased_until > clock_timestamp())
        ) THEN
            RAISE EXCEPTION 'sqlbuffer: the episode has ended' USING
                ERRCODE = 'object_not_in_prerequisite_state', DETAIL = json_build_array(p.key, p.task_id, p.status)::text;
        END IF;
        -- Steps of chunks are stored in their order.
        is_last := NOT EXISTS (
            SELECT 1 FROM experiences x
            WHERE x.buffer_id = p_buffer_id AND x.episode_id = p.id AND x.t > p.t);
        IF is_last AND NOT p.ends THEN
            UPDATE episodes
            SET status = 'open', is_implied = false, length = NULL, "return" = NULL, first_seq = NULL, last_seq = NULL, ended_at = NULL
            WHERE id = p.id;
        ELSIF is_last OR p.status <> 'open' THEN
            UPDATE episodes e
            SET status = 'complete', is_implied = true, length = CASE WHEN e.next_t > 0 THEN e.next_t ELSE coalesce(
                    (SELECT max(x.t) + 1 FROM experiences x WHERE x.buffer_id = p_buffer_id AND x.episode_id = e.id), r.length) END, "return" = r."return", first_seq = r.first_seq,
                last_seq = r.last_seq, ended_at = CASE WHEN is_last THEN now() ELSE e.ended_at END
            FROM rollout_stats r
            WHERE e.id = p.id AND r.buffer_id = e.buffer_id AND r.task_id = e.task_id AND r.episode_id = e.id;
        END IF;
    END LOOP;
END
$$
