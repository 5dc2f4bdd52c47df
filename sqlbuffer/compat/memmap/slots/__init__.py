"""Slots of a buffer: reading, storing and changing the episodes in them."""
