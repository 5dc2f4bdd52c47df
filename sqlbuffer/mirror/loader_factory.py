"""A loader of a mirror."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from warnings import warn

from sqlbuffer.loading.factory import passes_of
from sqlbuffer.loading.iteration import LoaderRun
from sqlbuffer.loading.loader import Loader
from sqlbuffer.loading.modes import LoaderOptions
from sqlbuffer.loading.output import Output
from sqlbuffer.loading.plans import BatchPlan, Draws, Progress, is_count
from sqlbuffer.mirror.condition_columns import check_in_memory
from sqlbuffer.mirror.loader_source import MirrorSource
from sqlbuffer.mirror.memory_draws import MemoryDraws
from sqlbuffer.mirror.mirror_settings import MirrorSettings
from sqlbuffer.query.condition_tree import EVERYTHING, Group
from sqlbuffer.query.tree_checks import check
from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.store import BufferStore


def open_mirror_loader(
    store: BufferStore,
    settings: MirrorSettings,
    draws: MemoryDraws,
    options: LoaderOptions,
    output: Output,
    prefetch: Any,
) -> Loader[Any]:
    """Return a loader of a mirror; see `ReplayBuffer.loader`.

    Args:
        store: The buffer.
        settings: Settings of the mirror.
        draws: Draws from it.
        options: The options of the loader.
        output: Form of its batches.
        prefetch: Number of batches that a thread makes ahead.
    """
    form, n = options.form(settings.fields), int(options.batch_size)
    node = check(options.condition, store.info.config.fields.comparable)
    check_in_memory(node, settings.fields.specs)
    source = MirrorSource(store, draws, form, node)
    whole = node if settings.node == EVERYTHING else Group("all", (settings.node, node))
    identity = {"buffer": store.info.name, **options.identity(whole)}
    plan: BatchPlan
    if options.is_drawn:
        drawn = Draws(source, n, options.sampler, bool(options.replace))
        plan = MirrorDrawsPlan(drawn, lambda: source.head, store.info.name)
        identity["mirror"] = True
    else:
        plan = passes_of(store, source, options, identity)
    return Loader(
        plan, identity, seed=options.seed, output=output, prefetch=prefetch, rank=options.rank
    )


@dataclass(frozen=True)
class MirrorDrawsPlan:
    """Batches drawn from a mirror without end; see `Draws`.

    Their progress says which state of the buffer they were drawn from.

    Attributes:
        draws: The draws.
        head: Returns the newest step of the buffer when the last batch was drawn.
        name: The buffer's name.
    """

    draws: Draws
    head: Callable[[], int]
    name: str

    def batches(self, run: LoaderRun, progress: Progress) -> Iterator[tuple[Batch, Progress]]:
        """Yield the batches.

        Warns:
            UserWarning: The newest step is not the one at which the state was taken.
        """
        before = progress.get("head")
        begun = {"batch": progress["batch"]} if progress else {}
        for batch, behind in self.draws.batches(run, begun):
            head = self.head()
            if before is not None and head != before:
                warn(
                    f"the loader stopped when the newest step of buffer {self.name!r} was "
                    f"{before}, and now it is {head}: these batches are drawn from what the buffer "
                    f"has now, and are not those that would have come then",
                    stacklevel=2,
                )
            before = None
            yield batch, {**behind, "head": head}

    def begin(self, run: LoaderRun) -> Progress:
        """Return the progress before the first batch."""
        return {}

    def knows(self, progress: Progress) -> bool:
        """Return True if a value is the progress of draws from a mirror."""
        names = {"batch", "head"}
        return not progress or (set(progress) == names and all(map(is_count, progress.values())))

    def n_batches(self) -> int | None:
        """Return None: draws have no end."""
        return None
