"""Placeholder for DI-engine's `ding.data.buffer`: names the alternative."""

from sqlbuffer.compat.ding.errors import ALTERNATIVES

raise ALTERNATIVES.error("buffer")
