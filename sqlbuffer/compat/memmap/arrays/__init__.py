"""The values of stored fields as arrays that write to the database."""
