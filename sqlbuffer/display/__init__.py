"""Display of values and objects: in short, as JSON and CSV, and as HTML for notebooks."""
