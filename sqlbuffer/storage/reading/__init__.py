"""Rows of a buffer in insert order, by task, and counted."""
