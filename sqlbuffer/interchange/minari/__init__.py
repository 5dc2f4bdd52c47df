"""Minari data sets of the episodes of a buffer."""
