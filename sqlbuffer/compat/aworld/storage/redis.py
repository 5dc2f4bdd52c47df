"""Not part of this package: importing it names the alternative."""

from sqlbuffer.compat.aworld.alternatives import ALTERNATIVES

raise ALTERNATIVES.error("RedisStorage")
