"""Limits on how fast rows are inserted and sampled."""
