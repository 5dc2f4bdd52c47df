"""Data sets of Hugging Face's libraries of the steps and rollouts of a buffer."""
