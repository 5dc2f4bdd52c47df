"""Export to Parquet, and import from it."""
