"""Rows that are handed out for a while: claimed, acknowledged or given back."""
