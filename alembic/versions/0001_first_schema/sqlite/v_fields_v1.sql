CREATE VIEW v_fields AS
SELECT b.name AS buffer, f.spec ->> '$.name' AS field, f.level, f.number + 1 AS position,
    CASE substr(f.spec ->> '$.dtype', 2, 1)
        WHEN 'f' THEN 'float' || (8 * substr(f.spec ->> '$.dtype', 3))
        WHEN 'i' THEN 'int' || (8 * substr(f.spec ->> '$.dtype', 3))
        WHEN 'u' THEN 'uint' || (8 * substr(f.spec ->> '$.dtype', 3))
        WHEN 'c' THEN 'complex' || (8 * substr(f.spec ->> '$.dtype', 3))
        WHEN 'b' THEN 'bool'
        ELSE substr(f.spec ->> '$.dtype', 2) END AS dtype,
    coalesce(f.spec -> '$.shape', '[]') AS shape,
    coalesce(f.spec ->> '$.column', 0) AS comparable
FROM buffers b
JOIN (
    SELECT b.id, 'step' AS level, s.key AS number, s.value AS spec FROM buffers b, json_each(b.config, '$.fields.specs') s
    UNION ALL
    SELECT b.id, 'episode', m.key, m.value FROM buffers b, json_each(b.config, '$.fields.meta') m
) f ON f.id = b.id
