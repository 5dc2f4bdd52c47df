"""What only the compatibility layers need."""
