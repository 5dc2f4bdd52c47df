"""What the steps of each rollout add up to, and how the rollouts of a task differ."""
