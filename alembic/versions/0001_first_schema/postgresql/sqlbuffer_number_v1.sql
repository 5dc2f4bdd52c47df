-- Returns the number of a JSON value, or null: true is 1, and large or special floats are tagged.
CREATE FUNCTION sqlbuffer_number_v1(p_value jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE jsonb_typeof(p_value)
    WHEN 'number' THEN (p_value #>> '{}')::numeric
    WHEN 'boolean' THEN CASE WHEN p_value = 'true'::jsonb THEN 1 ELSE 0 END
    WHEN 'object' THEN CASE
        WHEN p_value ->> '$float' ~ '^(-?inf|-?[0-9]+|-0\.0)$' THEN replace(p_value ->> '$float', 'inf', 'Infinity')::numeric
    END
END
