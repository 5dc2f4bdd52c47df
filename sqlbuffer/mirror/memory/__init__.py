"""The steps of a mirror in memory."""
