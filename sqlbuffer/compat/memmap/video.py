"""Not part of this package: importing it names the alternative."""

from sqlbuffer.compat.memmap.absent import absent

raise absent("video")
