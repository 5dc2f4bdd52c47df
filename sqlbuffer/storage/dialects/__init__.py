"""Whole operations that the two databases do differently."""
