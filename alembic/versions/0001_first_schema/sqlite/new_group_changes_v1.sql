-- Takes what changes in a group: rollouts that are new (1) or leave it (-1), and the reward of one before and
-- now.
CREATE VIEW new_group_changes AS
SELECT buffer_id, group_id, n_rollouts, was, now FROM group_changes
