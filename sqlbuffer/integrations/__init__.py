"""Other libraries' own interfaces, on buffers in a database."""
