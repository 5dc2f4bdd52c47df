-- An episode whose steps are stored together with it: what it begins with, the places of these steps
-- (from t up to end_t), and its end. begins: it is made if it is not stored; else the call finds it.
CREATE TYPE packed_episode_v1 AS (
    key text,
    task_id text,
    agent_id text,
    group_id text,
    parent_id text,
    model_version bigint,
    meta jsonb,
    attempt integer,
    writer uuid,
    begins boolean,
    t bigint,
    end_t bigint,
    status text,
    reward double precision,
    final_arrays bytea
)
