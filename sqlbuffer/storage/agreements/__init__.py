"""What the ranks of a training run agree on."""
