"""The way from one schema to the next, and what a database has."""
