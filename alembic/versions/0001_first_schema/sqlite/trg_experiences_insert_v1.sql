-- First in, first out: rows that have left the window of their buffer are deleted. The library
-- reserves the numbers of a batch first and evicts after it, once for all of its rows; in a buffer
-- that evicts by row the trigger then does nothing. Typed fields are bytes that SQL cannot write, so
-- buffers that have some take no row.
CREATE TRIGGER trg_experiences_insert_v1 AFTER INSERT ON experiences
WHEN coalesce((SELECT next_seq <= NEW.seq OR evict_unit <> 'row' OR has_queue OR has_chunks OR is_copying FROM buffers WHERE id = NEW.buffer_id), true)
BEGIN
    SELECT RAISE(ABORT, 'sqlbuffer: no buffer with this buffer_id')
    WHERE NOT EXISTS (SELECT 1 FROM buffers WHERE id = NEW.buffer_id);
    SELECT RAISE(ABORT, 'sqlbuffer: the buffer is an unfinished copy')
    WHERE (SELECT is_copying FROM buffers WHERE id = NEW.buffer_id);
    SELECT RAISE(ABORT, 'sqlbuffer: the buffer has typed fields, which SQL cannot write; store its steps with ReplayBuffer.add or extend')
    WHERE (SELECT has_chunks FROM buffers WHERE id = NEW.buffer_id);
    SELECT RAISE(ABORT, 'sqlbuffer: a writer has continued the episode, and only it adds steps')
    FROM buffers b JOIN episodes p ON p.id = NEW.episode_id AND p.attempt > 1
    WHERE b.id = NEW.buffer_id AND b.next_seq <= NEW.seq;
    -- The library gives its rows their places in episodes. A late row takes its place.
    UPDATE experiences SET t = t + 1
    WHERE buffer_id = NEW.buffer_id AND episode_id = NEW.episode_id AND NEW.t IS NULL
      AND (SELECT b.next_seq <= NEW.seq AND NOT p.by_arrival FROM buffers b, episodes p WHERE b.id = NEW.buffer_id AND p.id = NEW.episode_id)
      AND t >= (SELECT min(x.t) FROM experiences x WHERE x.buffer_id = NEW.buffer_id AND x.episode_id = NEW.episode_id AND x.step > NEW.step);
    UPDATE experiences SET t = coalesce(
        (SELECT min(x.t) - 1 FROM experiences x, episodes p
         WHERE x.buffer_id = NEW.buffer_id AND x.episode_id = NEW.episode_id AND x.step > NEW.step AND p.id = NEW.episode_id AND NOT p.by_arrival),
        (SELECT max(x.t) + 1 FROM experiences x WHERE x.buffer_id = NEW.buffer_id AND x.episode_id = NEW.episode_id),
        (SELECT r.length FROM rollout_stats r WHERE r.buffer_id = NEW.buffer_id AND r.task_id = NEW.task_id AND r.episode_id = NEW.episode_id),
        0)
    WHERE "key" = NEW."key" AND NEW.episode_id IS NOT NULL AND NEW.t IS NULL
      AND (SELECT next_seq <= NEW.seq FROM buffers WHERE id = NEW.buffer_id);
    -- The library adds up a batch itself.
    INSERT INTO rollout_stats (buffer_id, task_id, episode_id, length, "return", first_seq, last_seq, group_id, reward, is_aborted)
    SELECT NEW.buffer_id, NEW.task_id, coalesce(NEW.episode_id, 0), 1, NEW.reward_t, NEW.seq, NEW.seq,
        coalesce(p.group_id, NEW.task_id), p.reward, coalesce(p.status = 'aborted', false)
    FROM buffers b LEFT JOIN episodes p ON p.id = NEW.episode_id
    WHERE b.id = NEW.buffer_id AND b.next_seq <= NEW.seq
    ON CONFLICT (buffer_id, task_id, episode_id, part) DO UPDATE
    SET length = length + excluded.length,
        "return" = CASE WHEN excluded."return" IS NULL THEN "return" ELSE coalesce("return", 0) + excluded."return" END,
        first_seq = min(first_seq, excluded.first_seq), last_seq = max(last_seq, excluded.last_seq);
    INSERT INTO new_episode_steps (id, t, ends)
    SELECT NEW.episode_id, (SELECT x.t FROM experiences x WHERE x."key" = NEW."key"), coalesce(NEW.terminated OR NEW.truncated, NEW.terminated, NEW.truncated, false)
    FROM buffers WHERE id = NEW.buffer_id AND next_seq <= NEW.seq AND NEW.episode_id IS NOT NULL;
    UPDATE buffers SET next_seq = NEW.seq + 1 WHERE id = NEW.buffer_id AND next_seq <= NEW.seq;
    INSERT INTO new_special_rows (buffer_id, seq, task_id, episode_id, model_version, session_id)
    SELECT NEW.buffer_id, NEW.seq, NEW.task_id, NEW.episode_id, NEW.model_version, NEW.session_id
    FROM buffers WHERE id = NEW.buffer_id AND (evict_unit <> 'row' OR has_queue);
    DELETE FROM experiences
    WHERE "key" > NEW.buffer_id << 40
      AND "key" <= (NEW.buffer_id << 40) + min(
          NEW.seq - (SELECT max_capacity FROM buffers WHERE id = NEW.buffer_id AND evict_unit = 'row' AND NOT has_queue),
          coalesce((SELECT min(h.low_seq) FROM holds h WHERE h.buffer_id = NEW.buffer_id AND h.live_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), NEW.seq));
END
