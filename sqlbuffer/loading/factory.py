"""A loader of one buffer."""

from typing import Any

from sqlbuffer.loading.loader import Loader
from sqlbuffer.loading.modes import LoaderOptions
from sqlbuffer.loading.output import Output
from sqlbuffer.loading.plans import BatchPlan, Draws, Passes
from sqlbuffer.storage.store import BufferStore


def open_loader(
    store: BufferStore, options: LoaderOptions, output: Output, prefetch: Any
) -> Loader[Any]:
    """Return a loader of a buffer."""
    source, n = options.source(store), int(options.batch_size)
    plan: BatchPlan
    if options.is_drawn:
        plan = Draws(source, n, options.sampler, bool(options.replace))
    else:
        plan = Passes(
            source, n, options.epochs, bool(options.shuffle), drop_last=bool(options.drop_last)
        )
    identity = {"buffer": store.info.name, **options.identity(source.node)}
    return Loader(plan, identity, seed=options.seed, output=output, prefetch=prefetch)
