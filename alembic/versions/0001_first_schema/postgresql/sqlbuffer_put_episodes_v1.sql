-- Finds or makes episodes, and appends the places of their new steps; returns their numbers. Null:
-- one of them is not as its writer expects, and nothing was changed. The call sorts them by their
-- keys, so that two writers of the same new ones cannot deadlock.
CREATE FUNCTION sqlbuffer_put_episodes_v1(p_buffer_id integer, p_episodes packed_episode_v1[]) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    p record;
    ids bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(p_episodes)]);
    made bigint[];
    n_made integer := 0;
BEGIN
    FOR p IN
        SELECT e.id, g.place, (e.next_t = g.t AND (g.status IS NULL OR e.status = 'open')
            AND CASE WHEN g.writer IS NULL THEN g.attempt = 0 AND e.attempt <= 1 ELSE e.attempt = g.attempt AND e.writer IS NOT DISTINCT FROM g.writer END
            AND (g.group_id IS NULL OR g.group_id IS NOT DISTINCT FROM e.group_id)
            AND (g.parent_id IS NULL OR g.parent_id IS NOT DISTINCT FROM e.parent_id)) AS is_expected
        FROM episodes e
        JOIN unnest(p_episodes) WITH ORDINALITY AS g(
            key, task_id, agent_id, group_id, parent_id, model_version, meta, attempt, writer, begins, t, end_t, status, reward, final_arrays, place)
            ON g.key = e.key AND g.task_id = e.task_id
        WHERE e.buffer_id = p_buffer_id AND e.key = ANY (ARRAY(SELECT k.key FROM unnest(p_episodes) AS k))
          AND e.task_id = ANY (ARRAY(SELECT k.task_id FROM unnest(p_episodes) AS k))
        ORDER BY e.id FOR NO KEY UPDATE OF e
    LOOP
        IF NOT p.is_expected THEN
            RETURN NULL;
        END IF;
        ids[p.place] := p.id;
    END LOOP;
    IF array_position(ids, NULL) IS NOT NULL THEN
        WITH new_episodes AS (
            INSERT INTO episodes (buffer_id, key, task_id, agent_id, group_id, parent_id, model_version, meta, attempt, writer, next_t)
            SELECT p_buffer_id, g.key, g.task_id, g.agent_id, g.group_id, g.parent_id, g.model_version, g.meta, g.attempt, g.writer, g.end_t
            FROM unnest(p_episodes) WITH ORDINALITY AS g(
                key, task_id, agent_id, group_id, parent_id, model_version, meta, attempt, writer, begins, t, end_t, status, reward, final_arrays, place)
            WHERE ids[g.place] IS NULL AND g.begins ORDER BY g.place
            ON CONFLICT DO NOTHING RETURNING id
        )
        SELECT array_agg(n.id ORDER BY n.id) INTO made FROM new_episodes n;
        FOR place IN 1 .. cardinality(ids) LOOP
            IF ids[place] IS NULL THEN
                n_made := n_made + 1;
                ids[place] := made[n_made];
            END IF;
        END LOOP;
        IF n_made > coalesce(cardinality(made), 0) THEN
            -- Another writer has made one of them since.
            DELETE FROM episodes WHERE id = ANY (made);
            RETURN NULL;
        END IF;
    END IF;
    IF n_made < cardinality(ids) THEN
        -- To take one element of a long array of episodes after the other would walk over it each time.
        UPDATE episodes e SET next_t = g.end_t
        FROM unnest(p_episodes) WITH ORDINALITY AS g(
            key, task_id, agent_id, group_id, parent_id, model_version, meta, attempt, writer, begins, t, end_t, status, reward, final_arrays, place)
        WHERE e.id = ids[g.place] AND e.id <> ALL (coalesce(made, '{}'));
    END IF;
    RETURN ids;
END
$$
