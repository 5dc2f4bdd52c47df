"""What is logged of a buffer, and what limits its throughput."""
