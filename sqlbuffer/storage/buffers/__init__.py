"""The buffers of a database: their settings, windows and sessions."""
