"""A mirror in memory that the processes of one machine share."""
