"""Stands where DI-engine's `ding.data.buffer` is: says what to use instead."""

from sqlbuffer.compat.ding.absent import absent

raise absent("buffer")
