-- Applies the changes of groups that other transactions have left because this lock was taken;
-- returns false if it is taken now. The lock is held until the transaction ends: the next holder
-- could not see an uncommitted change of a group.
CREATE FUNCTION sqlbuffer_fold_groups_v1(p_buffer_id integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    groups text[];
    rollouts integer[];
    returns_was double precision[];
    returns_now double precision[];
BEGIN
    -- An older snapshot would not show the changes of the last holder.
    IF current_setting('transaction_isolation') <> 'read committed' OR NOT pg_try_advisory_xact_lock(1397836868, p_buffer_id) THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT 1 FROM group_changes WHERE buffer_id = p_buffer_id) THEN
        WITH left_over AS (
            DELETE FROM group_changes g WHERE g.buffer_id = p_buffer_id RETURNING g.*
        )
        SELECT array_agg(l.group_id), array_agg(l.n_rollouts), array_agg(l.was), array_agg(l.now)
        INTO groups, rollouts, returns_was, returns_now FROM left_over l;
        IF groups IS NOT NULL THEN
            PERFORM sqlbuffer_change_groups_v1(p_buffer_id, groups, rollouts, returns_was, returns_now);
        END IF;
    END IF;
    RETURN true;
END
$$
