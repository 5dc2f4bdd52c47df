"""Not part of this package: importing it names the alternative."""

from sqlbuffer.compat.minestudio.absent import absent

raise absent("actor")
