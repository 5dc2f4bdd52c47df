"""The commands of `sqlbuffer`, one a file."""
