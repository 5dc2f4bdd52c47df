-- Inserts rows of plain SQL if steps are in chunks: as a chunk of one step, without typed fields.
-- Its JSON is checked, since invalid JSON would damage the chunk. Then rows that exceed the limits
-- of the buffer leave, as after a write of the library.
CREATE TRIGGER trg_new_experiences_chunk_v1 INSTEAD OF INSERT ON new_experiences
WHEN (SELECT has_chunks FROM buffers WHERE id = NEW.buffer_id)
BEGIN
    INSERT INTO chunk_data ("key", buffer_id, first_seq, n_steps, task_id, agent_id, step, ends, records, block_steps, payloads)
    SELECT NEW.buffer_id << 40 | b.next_seq, NEW.buffer_id, b.next_seq, 1, NEW.task_id, NEW.agent_id, NEW.step,
        CASE coalesce(NEW.terminated <> 0, 0) + 2 * coalesce(NEW.truncated <> 0, 0) WHEN 1 THEN x'01' WHEN 2 THEN x'02' WHEN 3 THEN x'03' END,
        x'', 1,
        CASE WHEN coalesce(NEW.state, NEW.actions, NEW.messages, NEW.extra) IS NOT NULL THEN '[{' || substr(
            CASE WHEN NEW.state IS NOT NULL THEN ',"state":' || json(NEW.state) ELSE '' END
            || CASE WHEN NEW.actions IS NOT NULL THEN ',"actions":' || json(NEW.actions) ELSE '' END
            || CASE WHEN NEW.messages IS NOT NULL THEN ',"messages":' || json(NEW.messages) ELSE '' END
            || CASE WHEN NEW.extra IS NOT NULL THEN ',"extra":' || json(NEW.extra) ELSE '' END, 2) || '}]'
        END
    FROM buffers b WHERE b.id = NEW.buffer_id;
    UPDATE buffers SET has_step_ids = 1 WHERE id = NEW.buffer_id AND NEW.id IS NOT NULL AND NOT has_step_ids;
    INSERT INTO step_ids (buffer_id, seq, id)
    SELECT NEW.buffer_id, b.next_seq, NEW.id FROM buffers b WHERE b.id = NEW.buffer_id AND NEW.id IS NOT NULL;
    INSERT INTO chunks (
        "key", buffer_id, first_seq, n_steps, id, task_id, task_name, agent_id, pre_agent, step, model_version, first_time,
        last_time, reward_t, adv_t, v_t, terminated, truncated, initial_priority
    )
    SELECT NEW.buffer_id << 40 | b.next_seq, NEW.buffer_id, b.next_seq, 1,
        lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8'
            || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))),
        NEW.task_id, NEW.task_name, NEW.agent_id, NEW.pre_agent, NEW.step, NEW.model_version, NEW.execute_time, NEW.execute_time,
        CASE WHEN NEW.reward_t = 9e999 THEN '[9e999]' WHEN NEW.reward_t = -9e999 THEN '[-9e999]' WHEN NEW.reward_t IS NOT NULL THEN '[' || printf('%!.17g', NEW.reward_t) || ']' END,
        CASE WHEN NEW.adv_t = 9e999 THEN '[9e999]' WHEN NEW.adv_t = -9e999 THEN '[-9e999]' WHEN NEW.adv_t IS NOT NULL THEN '[' || printf('%!.17g', NEW.adv_t) || ']' END,
        CASE WHEN NEW.v_t = 9e999 THEN '[9e999]' WHEN NEW.v_t = -9e999 THEN '[-9e999]' WHEN NEW.v_t IS NOT NULL THEN '[' || printf('%!.17g', NEW.v_t) || ']' END,
        CASE WHEN NEW.terminated THEN '[true]' WHEN NEW.terminated IS NOT NULL THEN '[false]' END,
        CASE WHEN NEW.truncated THEN '[true]' WHEN NEW.truncated IS NOT NULL THEN '[false]' END,
        CASE WHEN b.has_priorities THEN '[' || printf('%!.17g', coalesce(b.max_priority, 1.0)) || ']' END
    FROM buffers b WHERE b.id = NEW.buffer_id;
    DELETE FROM chunks
    WHERE "key" > NEW.buffer_id << 40
      AND "key" <= (NEW.buffer_id << 40) + (SELECT low_seq FROM v_windows WHERE buffer_id = NEW.buffer_id)
      AND first_seq + n_steps - 1 <= (
          SELECT low_seq FROM v_windows WHERE buffer_id = NEW.buffer_id AND evict_unit = 'row' AND max_capacity IS NOT NULL)
      AND first_seq + n_steps - 1 <= coalesce((SELECT min(h.low_seq) FROM holds h WHERE h.buffer_id = NEW.buffer_id AND h.live_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), first_seq + n_steps)
      AND NOT EXISTS (
          SELECT 1 FROM queue_items q
          WHERE q.buffer_id = NEW.buffer_id AND q.seq >= chunks.first_seq AND q.seq < chunks.first_seq + chunks.n_steps
            AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
      );
    DELETE FROM chunks
    WHERE buffer_id = NEW.buffer_id
      AND task_id = (
          SELECT t.task_id FROM tasks t
          JOIN buffers b ON b.id = t.buffer_id AND b.evict_unit = 'task' AND b.live_rows > b.max_capacity
           AND (SELECT min(h.low_seq) FROM holds h WHERE h.buffer_id = NEW.buffer_id AND h.live_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) IS NULL
          WHERE t.buffer_id = NEW.buffer_id AND t.task_id <> NEW.task_id
          ORDER BY t.last_seq LIMIT 1
      );
    -- The oldest step, of the first chunk.
    INSERT INTO deleted_steps (buffer_id, seq)
    SELECT b.id, c.first_seq + n.place FROM buffers b
    JOIN chunks c ON c."key" = (SELECT min("key") FROM chunks WHERE "key" > NEW.buffer_id << 40)
    JOIN chunk_places n ON n.place < c.n_steps
    WHERE b.id = NEW.buffer_id AND b.evict_unit <> 'row' AND b.live_rows > b.max_capacity
      AND (SELECT min(h.low_seq) FROM holds h WHERE h.buffer_id = NEW.buffer_id AND h.live_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) IS NULL
      AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = b.id AND x.seq = c.first_seq + n.place)
    ORDER BY n.place LIMIT 1;
END
