"""Conditions: their construction, and their meaning in Python."""
