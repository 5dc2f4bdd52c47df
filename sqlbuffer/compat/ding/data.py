"""Stands where DI-engine's `ding.data` is: says what to use instead of its `buffer`."""

from sqlbuffer.compat.ding.absent import absent

raise absent("buffer")
