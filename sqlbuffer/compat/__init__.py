"""Adapters to the calls of other replay buffers: change the imports, keep the code."""
