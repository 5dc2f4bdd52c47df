"""Merge steps into a buffer that is in use."""
