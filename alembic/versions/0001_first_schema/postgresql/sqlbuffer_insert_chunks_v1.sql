-- Inserts chunks under the numbers from p_first_seq on. p_priority is for steps without a given
-- priority; null: the buffer has none. With p_episode_ids the chunks have places in that list.
-- unnest in the list of columns: in FROM it would copy all chunks, and to a file if they are large.
CREATE FUNCTION sqlbuffer_insert_chunks_v1(
    p_buffer_id integer, p_first_seq bigint, p_priority double precision, p_chunks packed_chunk_v1[],
    p_episode_ids bigint[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO chunk_data (
        buffer_id, first_seq, n_steps, task_id, agent_id, step, steps, episode_id, t, block_steps, layout, offsets, rewards, ends, records, payloads, payload_arrays)
    SELECT p_buffer_id, p_first_seq + (g.c).place, (g.c).n_steps, (g.c).task_id, (g.c).agent_id, (g.c).step, (g.c).steps, coalesce(p_episode_ids[(g.c).episode_id], (g.c).episode_id), (g.c).t,
        (g.c).block_steps, (g.c).layout, (g.c).offsets, (g.c).rewards, (g.c).ends, (g.c).records, (g.c).payloads, (g.c).payload_arrays
    FROM (SELECT unnest(p_chunks) AS c OFFSET 0) AS g;
    INSERT INTO chunks (
        buffer_id, first_seq, n_steps, id, task_id, task_name, agent_id, pre_agent, episode_id, t, step, steps, session_id, model_version, first_time, last_time, times,
        reward_t, adv_t, v_t, terminated, truncated, initial_priority, fields, inserted_at)
    SELECT p_buffer_id, p_first_seq + (g.c).place, (g.c).n_steps, (g.c).id, (g.c).task_id, (g.c).task_name, (g.c).agent_id, (g.c).pre_agent, coalesce(p_episode_ids[(g.c).episode_id], (g.c).episode_id), (g.c).t,
        (g.c).step, (g.c).steps, (g.c).session_id, (g.c).model_version, (g.c).first_time, (g.c).last_time, (g.c).times,
        (g.c).reward_t, (g.c).adv_t, (g.c).v_t, (g.c).terminated, (g.c).truncated,
        CASE WHEN p_priority IS NULL THEN (g.c).initial_priority
            WHEN (g.c).initial_priority IS NULL THEN array_fill(p_priority, ARRAY[(g.c).n_steps])
            ELSE array_replace((g.c).initial_priority, NULL, p_priority) END,
        (g.c).fields, coalesce((g.c).inserted_at, now())
    FROM (SELECT unnest(p_chunks) AS c OFFSET 0) AS g;
END
$$
