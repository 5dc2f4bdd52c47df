"""Draws of rows, and their restrictions."""
