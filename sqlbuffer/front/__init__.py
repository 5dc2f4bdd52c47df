"""The calls of `ReplayBuffer`, by task."""
