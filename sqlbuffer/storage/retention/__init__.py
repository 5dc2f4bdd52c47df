"""How rows leave a buffer: evicted, deleted or expired; and which are not sampled."""
