"""Steps as rows: how they are encoded, selected, read and removed."""
