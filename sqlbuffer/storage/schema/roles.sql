-- The roles sqlbuffer_writer, sqlbuffer_learner and sqlbuffer_analyst, each with the least rights.
--
--   sqlbuffer db roles | psql postgresql://postgres@HOST/DATABASE
--   GRANT sqlbuffer_writer TO alice;
--
-- Writers open and create buffers, store and sample, put and take work, and let steps leave that are
-- past max_age or max_bytes.
-- Learners also delete, clear, resize, update priorities, set the clock, lease, start sessions,
-- quarantine rows, and remove expired rows. They sample if that is a write (max_use,
-- track_samples), follow changes, hold steps for copies, and annotate. A process that judges the
-- actions of others takes this role. Writers may not change the reward of a step.
-- Analysts read. The role that runs this must be allowed to create roles, unless these exist, and
-- it must own the schema.
-- You can run it any number of times; run it again after `sqlbuffer db upgrade`.

BEGIN;

DO $$
DECLARE
    role_name text;
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = to_regclass('experiences'));
BEGIN
    IF home IS NULL THEN
        RAISE EXCEPTION 'no sqlbuffer schema here; run `sqlbuffer db init URL` first';
    END IF;
    FOREACH role_name IN ARRAY ARRAY['sqlbuffer_writer', 'sqlbuffer_learner', 'sqlbuffer_analyst'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', home, role_name);
    END LOOP;
END
$$;

GRANT SELECT ON
    v_experiences, v_tasks, v_agents, v_groups, v_episodes, episode_states, v_buffers, v_fields, v_priorities, v_samples, v_batches, v_storage, v_sessions, v_documents, v_checkpoints, v_work, v_quarantine, v_labels, v_verdicts, v_leases, v_queue, v_flow, v_waiting, v_evictions, v_windows, retention_bounds, chunk_steps, step_numbers, step_sums, new_experiences,
    {tables}, sqlbuffer_alembic_version
TO sqlbuffer_analyst, sqlbuffer_writer, sqlbuffer_learner;
GRANT EXECUTE ON FUNCTION sqlbuffer_ranges_v1 TO sqlbuffer_analyst, sqlbuffer_writer, sqlbuffer_learner;
GRANT EXECUTE ON FUNCTION sqlbuffer_marks_v1 TO sqlbuffer_analyst, sqlbuffer_writer, sqlbuffer_learner;
GRANT EXECUTE ON FUNCTION sqlbuffer_slices_v1 TO sqlbuffer_analyst, sqlbuffer_writer, sqlbuffer_learner;
GRANT EXECUTE ON FUNCTION sqlbuffer_messages_v1, sqlbuffer_step_messages_v1 TO sqlbuffer_analyst, sqlbuffer_writer, sqlbuffer_learner;

GRANT INSERT ON buffers, experiences, new_experiences, v_experiences, episodes, sessions TO sqlbuffer_writer, sqlbuffer_learner;
GRANT UPDATE (status, length, "return", reward, next_t, first_seq, last_seq, meta, final_arrays, ended_at, is_implied, by_arrival, was_used, attempt, writer, writers, verdicts, used_at) ON episodes
TO sqlbuffer_writer, sqlbuffer_learner;
-- A late row takes its place in its episode.
GRANT UPDATE (t) ON experiences TO sqlbuffer_writer, sqlbuffer_learner;
-- Sampled rows, and waiting calls.
GRANT INSERT, UPDATE, DELETE ON flow, flow_waits, flow_history TO sqlbuffer_writer, sqlbuffer_learner;
GRANT USAGE ON SEQUENCE buffers_id_seq, episodes_id_seq, sessions_id_seq, work_items_id_seq TO sqlbuffer_writer, sqlbuffer_learner;
GRANT EXECUTE ON FUNCTION sqlbuffer_reserve_v1, sqlbuffer_reserve_seqs_v1, sqlbuffer_reserve_steps_v1, sqlbuffer_insert_chunks_v1, sqlbuffer_store_chunks_v1, sqlbuffer_held_ids_v1, sqlbuffer_free_episode_v1, sqlbuffer_end_episodes_v1, sqlbuffer_lease_v1, sqlbuffer_sweep_v1, sqlbuffer_raise_low_v1, sqlbuffer_leave_v1, sqlbuffer_count_rows_v1, sqlbuffer_keep_parts_v1,
    sqlbuffer_find_messages_v1, sqlbuffer_add_messages_v1, sqlbuffer_sweep_messages_v1,
    sqlbuffer_lock_v1, sqlbuffer_note_write_v1, sqlbuffer_fold_groups_v1, sqlbuffer_forget_writes_v1, sqlbuffer_count_evictions_v1, sqlbuffer_trim_changes_v1
TO sqlbuffer_writer, sqlbuffer_learner;
-- Lets writers clean up after evicted rows; before PostgreSQL 17 only the owner has that right.
DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 170000 THEN
        GRANT MAINTAIN ON experiences, episodes, tasks, priority_blocks, row_blocks, samples, flow, leases, applied_writes,
            {vacuumed}
        TO sqlbuffer_writer, sqlbuffer_learner;
    END IF;
END
$$;

GRANT DELETE ON experiences, v_experiences, episodes TO sqlbuffer_learner;
GRANT UPDATE (config, n_added, field_defaults, max_capacity, max_episodes, max_age_s, max_bytes, low_seq, deletions, clock, flow, session_id, n_expired, n_used_up, n_other_session,
    n_partial, n_flat, has_followers, has_holds, is_copying, keep_episodes, {flags}) ON buffers TO sqlbuffer_learner;
GRANT UPDATE (current_version) ON sessions TO sqlbuffer_learner;
-- When a few rows are deleted, their weight is subtracted from the sums.
GRANT INSERT ON priority_blocks TO sqlbuffer_learner;
GRANT INSERT, UPDATE (undone), DELETE ON samples TO sqlbuffer_learner;
{grants}
GRANT INSERT, UPDATE, DELETE ON leases TO sqlbuffer_learner;
GRANT USAGE ON SEQUENCE samples_id_seq, change_log_id_seq TO sqlbuffer_learner;
GRANT EXECUTE ON FUNCTION sqlbuffer_remove_v1, sqlbuffer_remove_episodes_v1, sqlbuffer_evict_chunks_v1, sqlbuffer_evict_tasks_v1, sqlbuffer_evict_episodes_v1 TO sqlbuffer_learner;
GRANT EXECUTE ON FUNCTION sqlbuffer_replace_v1 TO sqlbuffer_learner;
GRANT EXECUTE ON FUNCTION sqlbuffer_update_priorities_v1, sqlbuffer_summarize_v1, sqlbuffer_hold_v1, sqlbuffer_erase_messages_v1 TO sqlbuffer_learner;

COMMIT;
