"""Migrations from one schema to the next, and the state of a database's schema."""
