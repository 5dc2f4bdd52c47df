"""Copy buffers."""
