"""A warning for loaders in several ranks, as torchrun starts them."""

import os
import warnings


class RanksWarning(UserWarning):
    """Each rank of a distributed training is to read the same rows."""


def warn_of_ranks(*, passes: bool, seeded: bool) -> None:
    """Warn where WORLD_SIZE is above 1 and all ranks would read the same; called by `loader`.

    Args:
        passes: Each rank visits all rows.
        seeded: Each rank that has this seed draws the same batches.
    """
    size = os.environ.get("WORLD_SIZE", "")
    if not (size.isdecimal() and int(size) > 1 and (passes or seeded)):
        return
    if passes:
        what = "each rank visits all rows in a pass"
        remedy = (
            "use sqlbuffer.torch.Dataset with torch's DistributedSampler, or give each rank "
            "its own condition"
        )
    else:
        what = "ranks with the same seed draw the same batches"
        remedy = "leave out seed, or give each rank its own seed"
    warnings.warn(
        f"WORLD_SIZE is {size}, and loaders do not divide rows between ranks: {what}; {remedy}. "
        f"Where that is done or meant: warnings.filterwarnings('ignore', 'WORLD_SIZE')",
        RanksWarning,
        stacklevel=3,
    )
