"""How objects show themselves: short values, and HTML for notebooks."""
