"""Placeholder for an upstream module that this package does not have: names the alternative."""

from sqlbuffer.compat.memmap.errors import ALTERNATIVES

raise ALTERNATIVES.error("ReplayBufferH5PY")
