"""What was changed after the insert, for those who follow a buffer."""
