"""The items of a buffer as rows, as a state dict and as a file."""
