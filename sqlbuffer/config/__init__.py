"""The stored settings of a buffer, and the settings of each process that opens it."""
