"""Write steps to the database."""
