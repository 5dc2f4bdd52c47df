"""Stands where DI-engine's `ding.data` is: says what to use instead of its `buffer`."""

from sqlbuffer.compat.ding.alternatives import ALTERNATIVES

raise ALTERNATIVES.error("buffer")
