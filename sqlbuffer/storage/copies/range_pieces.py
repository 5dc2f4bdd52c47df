"""Cut a range of steps into pieces that may be read by several processes."""

from sqlalchemy import Connection

from sqlbuffer.storage.copies.copied_parts import CopiedRange
from sqlbuffer.storage.copies.source_steps import CopySource


def range_pieces(
    source: CopySource, copied: CopiedRange, n: int
) -> list[tuple[CopiedRange, int | None]]:
    """Return at most n ranges of similar numbers of steps, which together are the range.

    Each chunk is in one of them only. Next to each range is its number of steps, if missing ones
    would not show.
    """

    def look(connection: Connection) -> list[tuple[CopiedRange, int | None]]:
        low, high = copied.low, copied.high
        n_ranges = min(n, high - low)
        ends: list[int] = []
        for i in range(1, n_ranges):
            end = low + (high - low) * i // n_ranges
            chunk = source.chunk_at(connection, end)
            if chunk is not None and chunk[1] > end:
                end = chunk[1]
            if low < end < high and end not in ends:
                ends.append(end)
        starts = [low, *ends]
        cursors = [copied.cursor, *ends]
        stops = [*ends, high]
        pieces = [CopiedRange(*each) for each in zip(starts, stops, cursors, strict=True)]
        return [(each, source.count(connection, each.low, each.high)) for each in pieces]

    return source.read(look) if copied.low < copied.high else []
