"""Flat arrays of transitions, the form of D4RL and d3rlpy: import and export."""
