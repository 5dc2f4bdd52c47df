"""How drawn steps are read with their neighbours: one reader for each kind of batch item."""
