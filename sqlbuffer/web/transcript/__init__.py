"""Conversations as a page shows them: turns, search, differences. Nothing here reads a database."""
