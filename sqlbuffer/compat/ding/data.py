"""Placeholder for DI-engine's `ding.data`: names the alternative to its `buffer`."""

from sqlbuffer.compat.ding.errors import ALTERNATIVES

raise ALTERNATIVES.error("buffer")
