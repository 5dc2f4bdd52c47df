"""Watermarks: numbers at or below which no row can appear any more."""
