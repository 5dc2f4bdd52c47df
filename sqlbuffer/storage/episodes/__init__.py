"""Episodes: their beginnings, endings and rows."""
