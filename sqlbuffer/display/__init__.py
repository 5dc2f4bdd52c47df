"""How values and objects are shown: in short, as JSON and CSV, and as HTML for notebooks."""
