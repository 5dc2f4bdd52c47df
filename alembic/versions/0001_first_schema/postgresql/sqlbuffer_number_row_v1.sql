-- Numbers rows of plain SQL, gives them their places in episodes, and sets their priority to the
-- largest ever set. Typed fields are
-- bytes that SQL cannot write, so buffers that have some take no such row.
CREATE FUNCTION sqlbuffer_number_row_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b buffers%ROWTYPE;
    v_attempt integer;
    is_by_arrival boolean;
BEGIN
    SELECT * INTO b FROM buffers WHERE id = NEW.buffer_id;
    IF b.has_chunks THEN
        RAISE EXCEPTION 'sqlbuffer: buffer % has typed fields, which SQL cannot write; store its steps with ReplayBuffer.add or extend', b.name
        USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.episode_id IS NOT NULL THEN
        -- The lock first: a writer may continue the episode at this moment.
        SELECT p.attempt, p.by_arrival INTO v_attempt, is_by_arrival FROM episodes p WHERE p.id = NEW.episode_id FOR NO KEY UPDATE;
        IF v_attempt > 1 THEN
            RAISE EXCEPTION 'sqlbuffer: a writer has continued the episode, and only it adds steps' USING
                ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        IF NEW.t IS NULL AND NOT is_by_arrival THEN
            -- A late row takes its place.
            SELECT min(x.t) INTO NEW.t FROM experiences x
            WHERE x.buffer_id = NEW.buffer_id AND x.episode_id = NEW.episode_id AND x.step > NEW.step;
            UPDATE experiences SET t = t + 1 WHERE buffer_id = NEW.buffer_id AND episode_id = NEW.episode_id AND t >= NEW.t;
        END IF;
        IF NEW.t IS NULL THEN
            NEW.t := coalesce(
                (SELECT max(x.t) + 1 FROM experiences x WHERE x.buffer_id = NEW.buffer_id AND x.episode_id = NEW.episode_id),
                (SELECT r.length FROM rollout_stats r
                 WHERE r.buffer_id = NEW.buffer_id AND r.task_id = NEW.task_id AND r.episode_id = NEW.episode_id),
                0);
        END IF;
    END IF;
    NEW.seq := sqlbuffer_reserve_v1(NEW.buffer_id, 1);
    IF NEW.initial_priority IS NULL AND b.has_priorities THEN
        -- A separate statement: another transaction may have raised it while this one waited for
        -- its number.
        SELECT coalesce(max_priority, 1.0) INTO NEW.initial_priority FROM buffers WHERE id = NEW.buffer_id;
    END IF;
    RETURN NEW;
END
$$
