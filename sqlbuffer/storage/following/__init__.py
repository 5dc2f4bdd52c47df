"""Changes of a buffer since the last look, read in one state of the database."""
