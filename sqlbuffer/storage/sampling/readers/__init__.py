"""Read drawn steps with their neighbours: one reader for each kind of batch item."""
