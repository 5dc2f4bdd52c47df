"""Statistics and listings of a database, for people."""
