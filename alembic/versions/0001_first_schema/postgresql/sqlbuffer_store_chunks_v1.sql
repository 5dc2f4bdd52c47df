-- Stores chunks under numbers that it reserves; returns the first one. Chunks of episodes have the
-- place of theirs in p_episodes as episode_id. Null: an episode is not as its writer expects, and
-- nothing was changed. With the id of a write it takes effect once: p_again says that an earlier call
-- with this id may have been committed, which is waited for if it has not ended.
CREATE FUNCTION sqlbuffer_store_chunks_v1(
    p_buffer_id integer, p_n bigint, p_largest double precision, p_write_id uuid, p_keep_s double precision, p_again boolean,
    p_chunks packed_chunk_v1[], p_episodes packed_episode_v1[], OUT first_seq bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    v_priority double precision;
    ids bigint[];
    p record;
BEGIN
    IF p_again AND NOT sqlbuffer_note_write_v1(p_buffer_id, p_write_id, p_keep_s) THEN
        SELECT a.first_seq INTO first_seq FROM applied_writes a WHERE a.buffer_id = p_buffer_id AND a.write_id = p_write_id;
        RETURN;
    END IF;
    IF p_episodes IS NOT NULL THEN
        ids := sqlbuffer_put_episodes_v1(p_buffer_id, p_episodes);
        IF ids IS NULL THEN
            IF p_again THEN
                DELETE FROM applied_writes a WHERE a.buffer_id = p_buffer_id AND a.write_id = p_write_id;
            END IF;
            RETURN;
        END IF;
    END IF;
    SELECT r.first_seq, r.priority INTO first_seq, v_priority
    FROM sqlbuffer_reserve_steps_v1(p_buffer_id, p_n, p_largest, CASE WHEN NOT p_again THEN p_write_id END, p_keep_s) r;
    IF p_again THEN
        UPDATE applied_writes a SET first_seq = sqlbuffer_store_chunks_v1.first_seq WHERE a.buffer_id = p_buffer_id AND a.write_id = p_write_id;
    END IF;
    PERFORM sqlbuffer_insert_chunks_v1(p_buffer_id, first_seq, v_priority, p_chunks, ids);
    FOR p IN
        SELECT g.place, g.status, g.reward, g.final_arrays FROM unnest(p_episodes) WITH ORDINALITY AS g(
            key, task_id, agent_id, group_id, parent_id, model_version, meta, attempt, writer, begins, t, end_t, status, reward, final_arrays, place)
        WHERE g.status IS NOT NULL ORDER BY g.place
    LOOP
        PERFORM sqlbuffer_end_episode_v1(p_buffer_id, ids[p.place], p.status, p.reward, p.final_arrays);
    END LOOP;
END
$$
