"""Which blocks of priorities are added up, and how large they are."""

import numpy as np
import pytest

from sqlbuffer.storage.buffers.catalog import block_size
from sqlbuffer.storage.priorities.blocks import FEW_BLOCKS, FEW_ROWS, Upkeep

NONE = np.empty(0, np.int64)


def summarized(upkeep: Upkeep) -> list[int]:
    """Return the blocks that are added up next."""
    asked: list[int] = []

    def summarize(blocks):
        asked.extend(blocks)
        return len(blocks)

    upkeep.run(summarize)
    return asked


@pytest.mark.parametrize("size", [256, 512, FEW_ROWS])
def test_blocks_are_added_up_where_reading_their_rows_takes_longer(size):
    n_few = FEW_ROWS // size
    blocks, upkeep = np.arange(10, 20), Upkeep()
    is_missing = np.arange(10) < n_few
    upkeep.note(size, blocks, is_missing, NONE)
    assert summarized(upkeep) == list(range(10, 10 + n_few))
    is_missing[n_few - 1] = False
    upkeep.note(size, blocks, is_missing, NONE)
    assert summarized(upkeep) == []


def test_a_large_block_is_added_up_as_soon_as_it_is_full():
    upkeep = Upkeep()
    upkeep.note(8_192, np.arange(3), np.array([False, True, False]), NONE)
    assert summarized(upkeep) == [1]


def test_many_blocks_are_added_up_however_small_they_are():
    upkeep = Upkeep()
    for n, due in ((FEW_BLOCKS - 1, []), (FEW_BLOCKS, list(range(FEW_BLOCKS)))):
        upkeep.note(1, np.arange(n), np.ones(n, bool), NONE)
        assert summarized(upkeep) == due


@pytest.mark.parametrize(
    ("capacity", "size"),
    [(1, 256), (100_000, 256), (1_000_000, 512), (10_000_000, 8_192), (None, 2_048)],
)
def test_blocks_are_as_large_as_leaves_few_of_them(capacity, size):
    assert block_size(capacity) == size
