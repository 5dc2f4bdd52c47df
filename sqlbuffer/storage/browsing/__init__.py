"""Database queries of the browser page; see `read_pool`."""
