"""The schema of a database, in words and in SQL: tables, types, functions, views and roles."""
