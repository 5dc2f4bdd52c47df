-- An episode that got steps is inserted here, with the place of the last of these steps. The view is
-- always empty.
CREATE VIEW new_episode_steps AS
SELECT id, 0 AS t, 0 AS ends FROM episodes WHERE false
