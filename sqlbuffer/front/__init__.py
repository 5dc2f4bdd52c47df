"""The calls of `ReplayBuffer`, by what they do."""
