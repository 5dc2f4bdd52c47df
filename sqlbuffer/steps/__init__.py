"""Steps, episodes and batches as users see them."""
