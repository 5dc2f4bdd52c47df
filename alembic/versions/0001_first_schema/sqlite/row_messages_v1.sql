-- The messages of rows, also of those that share them with other steps.
CREATE VIEW row_messages AS
SELECT e."key", CASE WHEN e.message_ids IS NULL THEN e.messages ELSE (SELECT coalesce(group_concat(
        CASE WHEN m.hash IS NULL AND m.id > r.value THEN m.content
        WHEN m.id > r.value OR m.id > 0 AND r.key > 0 THEN ',' || m.content
        WHEN m.id > 0 THEN '[' || m.content
        ELSE CASE WHEN r.key > 0 THEN ',' ELSE '[' END
            || CASE WHEN r.value > 0 THEN 'null' ELSE substr(json_extract(e.messages, '$.none', '$[' || json_extract(e.message_ids, '$[' || (r.key + 1) || ']') || ']'), 7, length(json_extract(e.messages, '$.none', '$[' || json_extract(e.message_ids, '$[' || (r.key + 1) || ']') || ']')) - 7) END
        END, ''), '[') || ']'
        FROM json_each(e.message_ids) r LEFT JOIN messages m
        ON m.buffer_id = e.buffer_id AND m.id >= nullif(r.value, 0) AND m.id < r.value + json_extract(e.message_ids, '$[' || (r.key + 1) || ']')
        WHERE (r.key & 1) = 0) END AS messages
FROM experiences e
