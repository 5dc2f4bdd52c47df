-- Notes the model version of each step of a batch, which stays when the steps leave.
CREATE TRIGGER trg_samples_insert_v1 AFTER INSERT ON samples
WHEN NEW.model_versions IS NULL
BEGIN
    UPDATE samples SET model_versions = (
        SELECT CASE WHEN count(v.version) > 0 THEN json_group_array(v.version) END
        FROM (
            SELECT CASE WHEN (SELECT b.has_chunks FROM buffers b WHERE b.id = NEW.buffer_id) THEN (
                SELECT CASE WHEN r.value < c.first_seq + c.n_steps THEN c.model_version END FROM chunks c
                WHERE c."key" > NEW.buffer_id << 40 AND c."key" <= (NEW.buffer_id << 40 | r.value) ORDER BY c."key" DESC LIMIT 1)
            ELSE (SELECT e.model_version FROM experiences e WHERE e."key" = NEW.buffer_id << 40 | r.value) END AS version
            FROM json_each(NEW.seqs) r
        ) v
    ) WHERE id = NEW.id;
END
