"""Commands that show a database in a browser."""
