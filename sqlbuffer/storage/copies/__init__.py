"""Copies of buffers, read from one database and written to another."""
