"""Not part of this package: importing it names the alternative."""

from sqlbuffer.compat.memmap.alternatives import ALTERNATIVES

raise ALTERNATIVES.error("ReplayBufferH5PY")
