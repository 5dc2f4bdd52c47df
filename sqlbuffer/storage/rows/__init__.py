"""Steps as rows: how they are selected, read and removed."""
