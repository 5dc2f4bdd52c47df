"""What the code is made of, and what the tests of it catch: measured, not judged."""
