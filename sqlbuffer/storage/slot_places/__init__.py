"""Slots of `compat.memmap`, as far as the core must know them: deleted steps empty slots."""
