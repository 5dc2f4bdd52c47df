"""Not part of this package: importing it names the alternative."""

from sqlbuffer.compat.minestudio.alternatives import ALTERNATIVES

raise ALTERNATIVES.error("actor")
