"""Storage of the compatibility layers, with the layouts of their buffers.

`sqlbuffer.storage` imports this package for its tables, so that every process knows the layouts. A
process may open such a buffer with the core API alone.
"""

from sqlbuffer.storage.buffers.catalog import BufferLayout, register_layout
from sqlbuffer.storage.extensions.slots.slot_layout import SlotLayout
from sqlbuffer.storage.extensions.tables import FRAGMENTS, RING, SLOTS

register_layout(SLOTS, SlotLayout())
register_layout(RING, BufferLayout())
register_layout(FRAGMENTS, BufferLayout())
