"""Numbers and images of steps as a page shows them. Nothing here reads a database."""
