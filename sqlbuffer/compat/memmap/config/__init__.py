"""The configuration of a buffer: slots, declared fields, and their types in the database."""
