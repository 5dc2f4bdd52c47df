"""The chooser that belongs to each sampler."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sqlbuffer.arguments import checked_sampler
from sqlbuffer.checks import refused
from sqlbuffer.mirror.choosing.by_priority import PrioritizedChooser
from sqlbuffer.mirror.choosing.chosen import Chooser
from sqlbuffer.mirror.choosing.one_end import OneEndChooser
from sqlbuffer.mirror.choosing.uniform import UniformChooser
from sqlbuffer.samplers import (
    FifoSampler,
    LatestSampler,
    PrioritizedSampler,
    RandomSampler,
    Sampler,
)


def _uniform(sampler: RandomSampler) -> Chooser:
    return UniformChooser(sampler.generator(), sampler.replace, by_number=True)


# A sampler of a class that is derived from one of these chooses in its own way.
_CHOOSERS: dict[type[Sampler], Callable[[Any], Chooser]] = {
    RandomSampler: _uniform,
    FifoSampler: lambda _sampler: OneEndChooser(newest=False),
    LatestSampler: lambda _sampler: OneEndChooser(newest=True),
}


def chooser_of(
    sampler: Sampler | None, rng: np.random.Generator, *, has_condition: bool
) -> Chooser:
    """Return what chooses the steps of the next draw.

    Args:
        sampler: The sampler; None: uniform with replacement.
        rng: Draws without a sampler, or without a seed.
        has_condition: The user says which steps may be drawn.

    Raises:
        ArgumentError: A sampler that a mirror does not have.
    """
    if sampler is None:
        return UniformChooser(rng, True)
    if type(sampler) is PrioritizedSampler:
        own = rng if sampler.seed is None else sampler.generator()
        return PrioritizedChooser(sampler, own, has_condition)
    chooser = _CHOOSERS.get(type(checked_sampler(sampler)))
    if chooser is None:
        names = ", ".join(kind.__name__ for kind in _CHOOSERS)
        what = f"a {names} or PrioritizedSampler in a mirror; the buffer itself draws with others"
        raise refused(sampler, "sampler", what)
    return chooser(sampler)
