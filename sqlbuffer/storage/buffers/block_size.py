"""Size of a block of priorities."""

# Measured: 2,000 blocks are read in about 2 ms, and a block of 512 rows whose weights are like
# errors accepts two draws in five. A buffer without a limit gets the block size of four million
# rows, since its blocks keep their size. At one million rows and with weights like errors, a draw
# takes 2 ms less with blocks of 2,048 than with blocks of 512. It takes 4 ms of 28 more if a few
# weights are far above the others. At ten million rows blocks of 2,048 mean 5,000 blocks instead of
# 20,000, at 1.3 us each on SQLite.
LEAST_BLOCK, MOST_BLOCK, BLOCKS_BITS = 256, 65_536, 11
USUAL_ROWS = 2**22


def block_size(max_capacity: int | None) -> int:
    """Return the number of row numbers in a block of priorities.

    The blocks are few enough to read all of them for each batch.
    """
    bits = ((max_capacity or USUAL_ROWS) - 1).bit_length() - BLOCKS_BITS
    return min(max(LEAST_BLOCK, 1 << max(bits, 0)), MOST_BLOCK)
