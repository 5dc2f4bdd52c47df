"""Storage of the compatibility layers, with the layouts of their buffers.

`sqlbuffer.storage` imports this package for its tables, so that every process knows the layouts. A
process may open such a buffer with the core API alone.
"""

from sqlbuffer.storage.buffers.catalog import register_layout
from sqlbuffer.storage.extensions.slots.slot_layout import SlotLayout
from sqlbuffer.storage.extensions.tables import SLOTS

register_layout(SLOTS, SlotLayout())
