"""Conditions: how they are built, and what they mean in Python."""
