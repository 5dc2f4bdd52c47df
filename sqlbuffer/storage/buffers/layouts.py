"""Layouts of buffers, and their parts in core calls.

A buffer names its layout in `buffers.layout`; null is the plain one. A compatibility
layer whose buffers keep more than rows registers its layout by name. Core calls `layout_of` and
knows nothing else about it.
"""

from sqlalchemy import Connection

from sqlbuffer.errors import BufferConfigError
from sqlbuffer.storage.buffers.buffer_info import BufferInfo


class BufferLayout:
    """The plain layout, which does nothing. Other layouts override the methods that they need."""

    def lock(self, connection: Connection, buffer_id: int) -> None:
        """Lock the layout's own rows, before a call that deletes rows locks anything else."""

    def after_delete(self, connection: Connection, buffer_id: int) -> None:
        """Update the layout after `delete`, in the transaction that deleted some rows."""

    def after_clear(self, connection: Connection, buffer_id: int) -> None:
        """Update the layout after `clear`, in the transaction that deleted all rows."""

    def check_resize(self, name: str) -> None:
        """Raise `BufferConfigError` if a buffer of this layout and name cannot be resized."""


_layouts: dict[str | None, BufferLayout] = {None: BufferLayout()}


def register_layout(name: str, layout: BufferLayout) -> None:
    """Register a layout under its name in `buffers.layout`."""
    _layouts[name] = layout


def layout_of(info: BufferInfo) -> BufferLayout:
    """Return the layout of a buffer.

    Raises:
        BufferConfigError: No layout of that name is registered in this process.
    """
    found = _layouts.get(info.layout)
    if found is None:
        raise BufferConfigError(
            f"buffer {info.name!r} has the layout {info.layout!r}, which this process does not "
            f"know; import the package that made the buffer first, or upgrade sqlbuffer"
        )
    return found
