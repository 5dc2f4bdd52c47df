CREATE VIEW v_fields AS
SELECT b.name AS buffer, f.spec ->> 'name' AS field, f.level, f.number AS position,
    CASE substr(f.spec ->> 'dtype', 2, 1)
        WHEN 'f' THEN 'float' || (8 * substr(f.spec ->> 'dtype', 3)::integer)
        WHEN 'i' THEN 'int' || (8 * substr(f.spec ->> 'dtype', 3)::integer)
        WHEN 'u' THEN 'uint' || (8 * substr(f.spec ->> 'dtype', 3)::integer)
        WHEN 'c' THEN 'complex' || (8 * substr(f.spec ->> 'dtype', 3)::integer)
        WHEN 'b' THEN 'bool'
        ELSE substr(f.spec ->> 'dtype', 2) END AS dtype,
    coalesce(f.spec -> 'shape', '[]') AS shape,
    coalesce((f.spec ->> 'column')::boolean, false) AS comparable
FROM buffers b
CROSS JOIN LATERAL (
    SELECT 'step' AS level, s.number, s.spec FROM jsonb_array_elements(b.config #> '{fields,specs}') WITH ORDINALITY s (spec, number)
    UNION ALL
    SELECT 'episode', m.number, m.spec FROM jsonb_array_elements(b.config #> '{fields,meta}') WITH ORDINALITY m (spec, number)
) f
