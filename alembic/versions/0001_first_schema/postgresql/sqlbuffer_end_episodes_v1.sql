-- Ends open episodes, each by the writer that owns it. Returns the first one that another writer has
-- taken, or that has ended with another status or reward.
CREATE FUNCTION sqlbuffer_end_episodes_v1(
    p_buffer_id integer, p_keys text[], p_tasks text[], p_statuses text[], p_rewards double precision[], p_finals bytea[],
    p_attempts integer[], p_writers uuid[], OUT taken_id bigint, OUT ended_place integer, OUT ended_status text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    p record;
BEGIN
    FOR p IN
        SELECT e.id, e.status, e.attempt, e.writer, e.reward AS stored_reward, e.verdicts IS NOT NULL AS is_judged, g.place, g.new_status, g.reward, g.final, g.its_attempt, g.its_writer
        FROM episodes e
        JOIN unnest(p_keys, p_tasks, p_statuses, p_rewards, p_finals, p_attempts, p_writers) WITH ORDINALITY
            AS g(key, task_id, new_status, reward, final, its_attempt, its_writer, place) ON g.key = e.key AND g.task_id = e.task_id
        WHERE e.buffer_id = p_buffer_id AND e.key = ANY (p_keys) AND e.task_id = ANY (p_tasks)
        ORDER BY e.id FOR NO KEY UPDATE OF e
    LOOP
        IF p.its_writer IS NOT NULL AND (p.attempt <> p.its_attempt OR p.writer IS DISTINCT FROM p.its_writer) THEN
            taken_id := p.id;
            ended_place := p.place;
            RETURN;
        END IF;
        IF p.status <> 'open' THEN
            IF p.status <> p.new_status OR (p.reward IS NOT NULL AND NOT p.is_judged AND p.reward IS DISTINCT FROM p.stored_reward) THEN
                ended_place := p.place;
                ended_status := p.status;
                RETURN;
            END IF;
            CONTINUE;
        END IF;
        PERFORM sqlbuffer_end_episode_v1(p_buffer_id, p.id, p.new_status, p.reward, p.final);
    END LOOP;
END
$$
