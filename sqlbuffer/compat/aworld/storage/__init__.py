"""Where a buffer with AWorld's calls keeps its rows."""
