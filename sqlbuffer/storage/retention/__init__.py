"""Rows that leave, or that are kept out of samples."""
