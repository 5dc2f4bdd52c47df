-- Applies changes of rewards to groups, or leaves them to the next transaction that can.
CREATE FUNCTION sqlbuffer_note_groups_v1(
    p_buffer_id integer, p_groups text[], p_rollouts integer[], p_was double precision[], p_now double precision[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF sqlbuffer_fold_groups_v1(p_buffer_id) THEN
        PERFORM sqlbuffer_change_groups_v1(p_buffer_id, p_groups, p_rollouts, p_was, p_now);
    ELSE
        INSERT INTO group_changes (buffer_id, group_id, n_rollouts, was, now)
        SELECT p_buffer_id, g.* FROM unnest(p_groups, p_rollouts, p_was, p_now) AS g;
    END IF;
END
$$
