"""The bytes of the typed fields of a step, in a select over `experiences`."""

from typing import Any

from sqlalchemy import Integer, LargeBinary
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.buffers.tables import experiences


class chunk_column(FunctionElement[Any]):
    """A column of `chunk_steps` that `experiences` lacks; there it is null.

    Its one argument is a column of the table that it belongs to.
    """

    inherit_cache = True


class block(chunk_column):
    """The block of bytes that has the step."""

    inherit_cache = True
    type = LargeBinary()
    name = "block"


class block_place(chunk_column):
    """The place of the step in that block."""

    inherit_cache = True
    type = Integer()
    name = "block_place"


@compiles(chunk_column)
def _no_column(_element: chunk_column, _compiler: Any, **_kw: Any) -> str:
    return "NULL"


COLUMNS = tuple(each(experiences.c.seq).label(each.name) for each in (block, block_place))
