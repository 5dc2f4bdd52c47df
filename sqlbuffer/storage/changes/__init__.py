"""Log of changes after the insert, for followers of a buffer."""
