"""A copy of a buffer in the memory of a learner, kept in step with the database."""
