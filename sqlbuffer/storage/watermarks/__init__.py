"""Watermarks: no row can appear at or below such a number any more."""
