"""What a database holds, in words and in SQL: tables, types, functions, views and roles."""
