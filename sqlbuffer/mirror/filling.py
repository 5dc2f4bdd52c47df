"""Keep the memory of a mirror in step with the database: one look after the other."""

from collections.abc import Callable

from sqlbuffer.errors import BufferConfigError, MirrorFullError
from sqlbuffer.mirror.memory.block_map import BLOCK
from sqlbuffer.mirror.memory.slot_arrays import Allocate, zeroed
from sqlbuffer.mirror.memory.step_limits import LIMIT_BYTES
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_record import slot_bytes
from sqlbuffer.sizes import shown_size
from sqlbuffer.storage.eligibility.eligible_rows import oldest_version
from sqlbuffer.storage.following.feed import News
from sqlbuffer.storage.store import BufferStore

# Room for what is new before what it evicts has gone, as a share of the capacity.
SLACK = 1 / 8
FEWEST_SLOTS = 65_536


class Filling:
    """Puts what is new in a buffer into memory.

    Args:
        store: The buffer.
        max_bytes: How much memory the steps may take.
        allocate: Makes arrays whose space is reserved; None: those of this process, which take
            memory when they are written to.
    """

    def __init__(
        self, store: BufferStore, max_bytes: int, allocate: Allocate | None = None
    ) -> None:
        self._allocate = allocate
        self._config, self._layout = store.info.config, store.layout
        self._slot_bytes = slot_bytes(self._layout) + LIMIT_BYTES
        self._max_bytes, self._most_slots = max_bytes, max_bytes // self._slot_bytes

    def new_memory(self, n_steps: int) -> StepMemory:
        """Return an empty memory for a buffer of so many steps.

        Raises:
            MirrorFullError: They do not fit.
        """
        self._check(n_steps)
        retention = self._config.retention
        wanted = max(2 * n_steps, FEWEST_SLOTS)
        if retention.evict_by == "row" and retention.max_capacity is not None:
            full = int(retention.max_capacity * (1 + SLACK)) + FEWEST_SLOTS
            wanted = full if self._allocate is None else min(wanted, full)
        return self.memory_of(min(wanted, self._most_slots), self._allocate or zeroed)

    def memory_of(self, n_slots: int, allocate: Allocate) -> StepMemory:
        """Return a memory of so many slots, in arrays that are given."""
        return StepMemory(self._layout, n_slots, allocate)

    def _check(self, n_steps: int) -> None:
        if n_steps > self._most_slots:
            raise MirrorFullError(
                f"{n_steps} steps take {shown_size(n_steps * self._slot_bytes)} of memory, and "
                f"max_bytes is {shown_size(self._max_bytes)}, enough for {self._most_slots}; "
                f"raise max_bytes, or lower max_capacity with resize()"
            )

    def stage(self, memory: StepMemory, news: News, hold: Callable[[], object]) -> None:
        """Put the chunks that are new into free slots; they are not visible before `commit`.

        Args:
            memory: The steps.
            news: What is new.
            hold: Keeps draws out until the commit. Called where there are too few free slots before
                what has left makes room.

        Raises:
            FieldError: A step cannot be read.
            MirrorFullError: They do not fit.
        """
        for page in news.chunks():
            if not memory.stage(page):
                hold()
                memory.make_room(news.state.low)
                while not memory.stage(page):
                    if memory.n_slots >= self._most_slots - BLOCK:
                        self._check(self._most_slots + 1)
                    memory.grow(min(2 * memory.n_slots, self._most_slots))

    def commit(self, memory: StepMemory, news: News) -> None:
        """Make the state of a look the one that is drawn from."""
        now, sampling = news.state, self._config.sampling
        memory.commit(
            now.low,
            deleted=news.deleted,
            rewards=news.rewards,
            quarantined=news.quarantined,
            released=news.released,
            episodes=news.episodes(sorted(memory.episodes.unread)),
            sessions=news.session_keys(sorted(memory.limits.unread)),
            limits=(
                oldest_version(now.clock, sampling.max_staleness),
                now.session if sampling.current_session_only else None,
            ),
        )


def check_mirrored(store: BufferStore) -> None:
    """Raise BufferConfigError where a buffer cannot be mirrored."""
    config, name = store.info.config, store.info.name
    if not store.info.has_chunks:
        raise BufferConfigError(
            f"buffer {name!r} has no typed fields, and a mirror holds nothing else; draw with "
            f"sample(), or make a buffer with fields=..."
        )
    if config.sampling.max_use is not None:
        raise BufferConfigError(
            f"buffer {name!r} counts the uses of its steps (max_use), which a mirror does not; "
            f"draw from the buffer itself"
        )
    if config.leases.enabled:
        raise BufferConfigError(
            f"buffer {name!r} hands out its steps by leases, which a mirror does not; use "
            f"lease() of the buffer itself"
        )
    if config.flow.rate_limiter is not None:
        raise BufferConfigError(
            f"buffer {name!r} has a rate limiter ({config.flow.rate_limiter}), which a mirror does "
            f"not obey; draw from the buffer itself, or remove the limiter "
            f"(set_rate_limiter(None))"
        )
    if config.sampling.track_samples:
        raise BufferConfigError(
            f"buffer {name!r} logs its batches (track_samples), which a mirror does not; draw from "
            f"the buffer itself"
        )
