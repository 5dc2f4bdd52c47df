"""Not part of this package: importing it names the alternative."""

from sqlbuffer.compat.aworld.absent import absent

raise absent("RedisStorage")
