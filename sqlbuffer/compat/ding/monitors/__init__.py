"""The logged figures of a buffer, and the limit of its throughput."""
