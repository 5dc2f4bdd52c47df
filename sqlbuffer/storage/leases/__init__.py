"""Rows that are leased for a time: claimed, acknowledged or given back."""
