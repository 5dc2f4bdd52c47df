"""Sums over the steps of each rollout, and the spread of the rollouts of a task."""
