"""How often rows are used, and the log of batches."""
