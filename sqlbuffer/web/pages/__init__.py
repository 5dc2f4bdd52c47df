"""The pages. Each module has its `ROUTES`."""
