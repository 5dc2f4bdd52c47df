"""Rows that leave, or that are excluded from samples."""
