"""The rings that hold the items of a buffer, in the memory of this process or in a database."""
