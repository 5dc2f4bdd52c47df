"""Values that arrive after a row was stored."""
