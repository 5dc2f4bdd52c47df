"""The ids of items: a name and the number of the item over all pushes."""

from collections.abc import Sequence

from sqlbuffer.encoding.records import Record


def number_of(id_: str) -> int:
    """Return the number in an id."""
    number = id_.rpartition("_")[2]
    return int(number) if number.isdecimal() and number.isascii() else -1


def numbered(records: Sequence[Record], numbers: range, name: str, priority: float) -> list[Record]:
    """Return records with the ids of their numbers, and with a priority if they have none."""
    return [
        record._replace(
            id=f"{name}_{number}",
            initial_priority=priority
            if record.initial_priority is None
            else record.initial_priority,
        )
        for record, number in zip(records, numbers, strict=True)
    ]
