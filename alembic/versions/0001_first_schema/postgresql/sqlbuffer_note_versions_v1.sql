-- Notes the model version of each step of a batch, which stays when the steps leave.
CREATE FUNCTION sqlbuffer_note_versions_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF (SELECT b.has_chunks FROM buffers b WHERE b.id = NEW.buffer_id) THEN
        NEW.model_versions := ARRAY(
            SELECT (SELECT CASE WHEN r.seq < c.first_seq + c.n_steps THEN c.model_version END FROM chunks c
                WHERE c.buffer_id = NEW.buffer_id AND c.first_seq <= r.seq ORDER BY c.first_seq DESC LIMIT 1)
            FROM unnest(NEW.seqs) WITH ORDINALITY AS r(seq, place) ORDER BY r.place);
    ELSE
        NEW.model_versions := ARRAY(
            SELECT (SELECT e.model_version FROM experiences e WHERE e.buffer_id = NEW.buffer_id AND e.seq = r.seq)
            FROM unnest(NEW.seqs) WITH ORDINALITY AS r(seq, place) ORDER BY r.place);
    END IF;
    IF array_remove(NEW.model_versions, NULL) = '{}' THEN
        NEW.model_versions := NULL;
    END IF;
    RETURN NEW;
END
$$
