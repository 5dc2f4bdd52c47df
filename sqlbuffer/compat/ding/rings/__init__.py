"""What holds the items of a buffer: the memory of this process, or a database."""
