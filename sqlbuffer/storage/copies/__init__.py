"""Copies of buffers: what is read of one database and written to another."""
