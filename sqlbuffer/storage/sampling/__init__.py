"""Which rows are drawn, and what restricts that."""
