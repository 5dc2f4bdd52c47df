"""Counts of the uses of rows, and the log of batches."""
