"""Stands where DI-engine's `ding.data.buffer` is: says what to use instead."""

from sqlbuffer.compat.ding.alternatives import ALTERNATIVES

raise ALTERNATIVES.error("buffer")
