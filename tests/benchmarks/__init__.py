"""How fast the buffer is beside the plainest SQL for the same: `python -m tests.benchmarks`."""
