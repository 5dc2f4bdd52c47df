"""How many numbers a block of priorities has."""

# Measured: 2,000 blocks are read in about 2 ms, and a block of 512 rows whose weights
# are like errors accepts two draws in five. A buffer without a limit is taken for one of four
# million, since its blocks keep their size: with blocks of 2,048 a draw at one million rows takes
# 2 ms less than with 512 for weights like errors, 4 ms of 28 more where a few are far above the
# others; but at ten million rows it reads 5,000 blocks instead of 20,000, at 1.3 us each on SQLite.
LEAST_BLOCK, MOST_BLOCK, BLOCKS_BITS = 256, 65_536, 11
USUAL_ROWS = 2**22


def block_size(max_capacity: int | None) -> int:
    """Return how many numbers a block of priorities has: few enough blocks to read all of them for
    each batch.
    """
    bits = ((max_capacity or USUAL_ROWS) - 1).bit_length() - BLOCKS_BITS
    return min(max(LEAST_BLOCK, 1 << max(bits, 0)), MOST_BLOCK)
