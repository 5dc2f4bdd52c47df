-- An episode that ends may exceed the limit of episodes. An episode that begins may make the list
-- of episodes without steps too long. The list is checked less often the longer it is, so that the
-- cost stays the same.
CREATE FUNCTION sqlbuffer_after_episode_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b buffers%ROWTYPE;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        PERFORM 1 FROM buffers WHERE id = NEW.buffer_id AND evict_unit = 'episode' FOR NO KEY UPDATE;
        IF FOUND THEN
            PERFORM sqlbuffer_evict_episodes_v1(NEW.buffer_id);
        END IF;
        RETURN NULL;
    END IF;
    SELECT * INTO b FROM buffers WHERE id = NEW.buffer_id;
    IF random() * b.keep_episodes < 100 THEN
        DELETE FROM episodes p
        WHERE p.buffer_id = NEW.buffer_id
          AND p.id <= (SELECT id FROM episodes WHERE buffer_id = NEW.buffer_id ORDER BY id DESC OFFSET b.keep_episodes LIMIT 1)
          AND EXISTS (SELECT 1 FROM episode_states s WHERE s.id = p.id AND s.status <> 'open')
          AND NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = NEW.buffer_id AND e.episode_id = p.id);
    END IF;
    RETURN NULL;
END
$$
