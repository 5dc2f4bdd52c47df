"""Torch datasets and data loaders over the slots of a buffer."""
