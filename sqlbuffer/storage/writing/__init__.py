"""How steps reach the database."""
