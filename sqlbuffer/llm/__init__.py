"""Rollouts of language models as conversations."""
