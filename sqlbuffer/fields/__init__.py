"""Typed fields of steps."""
