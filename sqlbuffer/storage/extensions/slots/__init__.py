"""Episodes in numbered slots for `compat.memmap`: claimed, shown, changed, emptied."""
