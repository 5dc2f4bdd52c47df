"""Draws whose chances follow weights."""
