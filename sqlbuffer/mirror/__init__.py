"""A copy of a buffer in the memory of a learner that follows the database."""
