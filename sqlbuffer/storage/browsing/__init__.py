"""What the pages of the browser ask of a database; see `read_pool`."""
