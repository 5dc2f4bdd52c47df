"""Make batches of steps in memory."""
