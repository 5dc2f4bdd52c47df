-- An episode that got steps is inserted here, with the last of these steps in the order of the
-- episode. The view is always empty.
CREATE VIEW new_episode_steps AS
SELECT id, 0 AS step, 0 AS seq, 0 AS ends FROM episodes WHERE false
