"""Make batches of steps: single ones, transitions, windows and trajectories."""
