"""What a database holds, for people: statistics and listings."""
