"""A loader of one buffer."""

from collections.abc import Mapping
from typing import Any

from sqlbuffer.loading.loader import Loader
from sqlbuffer.loading.modes import LoaderOptions
from sqlbuffer.loading.output import Output
from sqlbuffer.loading.plans import BatchPlan, Draws, Passes
from sqlbuffer.loading.ranks import group_of
from sqlbuffer.loading.sharded_passes import ShardedPasses, ShardSource
from sqlbuffer.storage.store import BufferStore


def open_loader(
    store: BufferStore, options: LoaderOptions, output: Output, prefetch: Any
) -> Loader[Any]:
    """Return a loader of a buffer."""
    source = options.source(store.drawing)
    identity = {"buffer": store.info.name, **options.identity(source.node)}
    plan: BatchPlan
    if options.is_drawn:
        n, replace = int(options.batch_size), bool(options.replace)
        plan = Draws(source, n, options.sampler, replace)
    else:
        plan = passes_of(store, source, options, identity)
    return Loader(
        plan, identity, seed=options.seed, output=output, prefetch=prefetch, rank=options.rank
    )


def passes_of(
    store: BufferStore, source: ShardSource, options: LoaderOptions, identity: Mapping[str, Any]
) -> BatchPlan:
    """Return the passes over a source, divided between ranks if there are several.

    Args:
        store: The buffer.
        source: Where the passes read.
        options: Options of the loader.
        identity: What decides which rows each batch contains.
    """
    n, shuffle, drop_last = int(options.batch_size), bool(options.shuffle), bool(options.drop_last)
    rank = options.rank
    if rank is None:
        return Passes(source, n, options.epochs, shuffle, drop_last)
    group = group_of((dict(identity), options.seed), rank.launch)
    return ShardedPasses(
        source, store.agreements, rank, group, n, options.epochs, shuffle, drop_last,
        bool(options.even),
    )  # fmt: skip
