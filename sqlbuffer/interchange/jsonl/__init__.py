"""Steps as JSON, one a line."""
