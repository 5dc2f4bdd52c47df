-- Locks the episodes that get steps and may end or open by them: after the buffer and in the order of
-- their ids, as all writers do. Returns them, and whether one has ended. A copy changes no status.
-- In PL/pgSQL, which keeps the plan: a function in SQL would be planned at each write.
CREATE FUNCTION sqlbuffer_lock_episodes_v1(p_buffer_id integer, p_ids bigint[], OUT ids bigint[], OUT has_ended boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    SELECT array_agg(q.id), bool_or(q.status <> 'open') INTO ids, has_ended FROM (
        SELECT p.id, p.status FROM episodes p
        WHERE p.id = ANY (p_ids) AND (p.attempt = 0 OR p.status <> 'open')
          AND NOT EXISTS (SELECT 1 FROM copies c WHERE c.buffer_id = p_buffer_id AND c.finished_at IS NULL)
        ORDER BY p.id FOR NO KEY UPDATE OF p
    ) AS q;
END
$$
