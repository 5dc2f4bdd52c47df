"""Holds: steps that have left the window of a buffer are not deleted before they are copied."""
