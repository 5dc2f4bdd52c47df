"""Take the steps of a buffer elsewhere."""
