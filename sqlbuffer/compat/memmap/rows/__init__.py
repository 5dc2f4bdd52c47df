"""Values of fields as rows of the database."""
