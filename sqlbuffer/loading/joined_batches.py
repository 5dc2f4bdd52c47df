"""One batch of the batches of several sources."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.rows.batch_parts import stacked


def joined(batches: Sequence[Batch], labels: Sequence[str]) -> Batch:
    """Return the rows of batches of several sources, one after the other, with their sources in
    `info`; lengths that differ are padded with zeros.
    """
    named = [
        Batch(batch, {**batch.info, "source": np.array([label] * batch.n_rows, object)})
        for label, batch in zip(labels, batches, strict=True)
    ]
    first = named[0]
    return Batch(
        {name: _joined(name, named) for name in first},
        {
            name: stacked([batch.info[name] for batch in named])
            for name in first.info
            if all(name in batch.info for batch in named)  # not every buffer notes its batches
        },
    )


def _joined(name: str, batches: Sequence[Batch]) -> NDArray[Any] | None:
    """Return one array of those of several batches; None where one of them is not known."""
    arrays = [batch[name] for batch in batches if batch[name] is not None or batch.n_rows]
    found: NDArray[Any] | None = stacked(arrays) if arrays else None
    return found
