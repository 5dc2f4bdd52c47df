"""Remember which steps meet a rare condition, so that later draws do not scan the buffer again.

The first draw that has scanned the buffer keeps the numbers of the steps that match, and its
position in the change log. Later draws read the steps that were stored since, and test changed ones
again. The drawn steps are tested once more when they are read.

Steps that are annotated, or put into or out of quarantine, by plain SQL are not in the change log.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from sqlbuffer.processes import ForkLock
from sqlbuffer.query.tree import EVERYTHING, Field, Group, Node
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.window import SampledWindow, settled_seq
from sqlbuffer.storage.changes import STANDBY, ChangeEntry, changes_since, log_position
from sqlbuffer.storage.database.engine import server_epoch
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.transactions import is_joined
from sqlbuffer.storage.labels.reading import LATE
from sqlbuffer.storage.rows import statements

Integers = NDArray[np.int64]

# A scan of fewer steps takes about as long as a draw.
FEWEST_STEPS = 16_384
# At most 8 MB for each condition.
MOST_CONDITIONS, MOST_NUMBERS = 4, 2**20
# Largest share of the numbers that match. To test a number again takes as long as 30 of a scan.
RARE = 1 / 32
MOST_COMMON = 64
TESTED_AT_ONCE = 10_000
MOST_CHANGES = 2**18  # steps that entries of the change log name

# Facts of an episode that no call changes.
_CONSTANT_FACTS = {"group_id", "parent_id"}
# Both may be erased without an entry in the change log.
_UNLOGGED = {"id", "messages"}


class Steps(Protocol):
    """The candidates of a draw, as far as this module needs them.

    Attributes:
        connection: The transaction.
        buffer_id: The buffer.
    """

    connection: Connection
    buffer_id: int

    def scan(self, low: int, high: int) -> Integers:
        """Return the matching numbers with `low < seq <= high` in ascending order."""

    def matching_among(self, seqs: Sequence[int]) -> list[int]:
        """Return those of some numbers that match."""


@dataclass(frozen=True)
class Known:
    """The steps that met a condition in one committed state of a buffer.

    Attributes:
        numbers: Their numbers in ascending order.
        settled: No further step up to this number can appear.
        window: The window of that state.
        position: Its position in the change log.
        epoch: Epoch of the server: after a crash it may give the same numbers to other steps.
    """

    numbers: Integers
    settled: int
    window: SampledWindow
    position: str
    epoch: int

    def may_precede(self, window: SampledWindow, epoch: int) -> bool:
        """Return True if a state with the same fields may come after this one."""
        before = self.window
        return (
            epoch == self.epoch
            and window.low >= before.low
            and window.high >= before.high
            and window.n_added == before.n_added
        )

    def has_all_of(self, window: SampledWindow) -> bool:
        """Return True if no step has left since, in a buffer that evicts tasks or episodes."""
        before = self.window
        return (before.low, before.high, before.deletions, before.live_rows) == (
            window.low, window.high, window.deletions, window.live_rows
        )  # fmt: skip


class RareConditions:
    """Remembers rare conditions on the steps of a buffer; threads share them.

    Args:
        buffer: The buffer.

    Attributes:
        evicts_groups: Whole tasks or episodes are evicted, not steps in the order of their numbers.
        known: The steps of the remembered conditions, those used last at the end.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self._buffer, self._mutex = buffer, ForkLock()
        self.known: OrderedDict[str, Known] = OrderedDict()
        # Conditions whose last draw has not scanned the buffer.
        self._common: OrderedDict[str, None] = OrderedDict()
        # Conditions that matched too many steps, and the number from which a scan may find fewer.
        self._too_many: OrderedDict[str, int] = OrderedDict()
        sampling = buffer.info.config.sampling
        self._has_server = buffer.url.get_backend_name() != "sqlite"
        # Tasks or episodes leave as a whole.
        self.evicts_groups = buffer.info.config.retention.evict_by != "row"
        # Uses, the clock and sessions change what may be drawn without an entry in the log.
        has_limits = sampling.max_use is not None or sampling.max_staleness is not None
        self._is_possible = not (has_limits or sampling.current_session_only)

    def before_draw(self, node: Node) -> "RareCondition | None":
        """Return what is known of a condition; None if it is not remembered.

        The draw begins its transaction afterwards: so it reads no earlier state than the known one.
        """
        buffer = self._buffer
        # Layouts of compat change steps in place.
        if node is EVERYTHING or not self._is_possible or buffer.info.layout is not None:
            return None
        if is_joined() or not _is_covered_by_log(node):
            return None
        key = repr(node)  # values that are equal may match other steps: 1 and True
        with self._mutex:
            known, is_common = self.known.get(key), key in self._common
        settled: int | None = 0
        if not is_common:
            try:
                settled = settled_seq(buffer.engine, buffer.watermark)
            except psycopg.errors.UndefinedTable:  # the buffer was dropped
                return None
        # Only a server can lose transactions while this process goes on.
        epoch = server_epoch(buffer.engine) if self._has_server else 0
        return RareCondition(self, node, key, known, settled, epoch)

    def keep(self, key: str, known: Known) -> None:
        """Remember the steps of a condition, in place of those that were used longest ago."""
        with self._mutex:
            self._common.pop(key, None)
            self.known[key] = known
            self.known.move_to_end(key)
            if len(self.known) > MOST_CONDITIONS:
                self.known.popitem(last=False)

    def forget(self, key: str) -> None:
        """Forget the steps of a condition."""
        with self._mutex:
            self.known.pop(key, None)

    def clear(self) -> None:
        """Forget all conditions."""
        with self._mutex:
            self.known.clear()
            self._common.clear()
            self._too_many.clear()

    def note_too_many(self, key: str, window: SampledWindow) -> None:
        """Note that a scan of a window has found more steps than may be kept."""
        with self._mutex:
            self._too_many[key] = window.high + window.span
            if len(self._too_many) > MOST_COMMON:
                self._too_many.popitem(last=False)

    def may_keep(self, key: str, window: SampledWindow) -> bool:
        """Whether a scan of a window may find few enough steps: not until as many steps came as the
        window had that held too many.
        """
        with self._mutex:
            return window.high >= self._too_many.get(key, 0)

    def note_common(self, key: str) -> None:
        """Note that a draw has kept no steps of a condition: the next one reads no watermark."""
        if not self._has_server:
            return
        with self._mutex:
            self._common[key] = None
            if len(self._common) > MOST_COMMON:
                self._common.popitem(last=False)


class RareCondition:
    """The steps that meet a condition, as far as they are known in one draw.

    Args:
        memory: Keeps them for later draws.
        node: The condition.
        key: Its key in the memory.
        known: The steps that met it before; None if they are not known.
        settled: Number up to which no further step can appear; None for the newest step.
        epoch: Epoch of the server before the draw.
    """

    def __init__(
        self,
        memory: RareConditions,
        node: Node,
        key: str,
        known: Known | None,
        settled: int | None,
        epoch: int,
    ) -> None:
        self._memory, self._node, self._key = memory, node, key
        self._known, self._settled, self._epoch = known, settled, epoch
        self._window: SampledWindow | None = None
        self._is_current = False

    def begin(self, window: SampledWindow) -> bool:
        """Note the window that the draw reads; return False if a scan of it takes no time."""
        self._window = window
        return window.span >= FEWEST_STEPS

    def end(self) -> None:
        """Note that the draw is over."""
        if self._known is None:
            self._memory.note_common(self._key)

    def numbers(self, steps: Steps) -> Integers | None:
        """Return the numbers of the steps that match, which must not be changed; None if unknown.

        Args:
            steps: The candidates of the draw.
        """
        if self._known is not None and not self._is_current:
            self._known = self._continued(self._known, steps)
            self._is_current = True
            if self._known is None:
                self._memory.forget(self._key)
            else:
                self._memory.keep(self._key, self._known)
        return None if self._known is None else self._known.numbers

    def note(self, steps: Steps, numbers: Integers) -> None:
        """Remember all steps that match, which a scan has found, if they are few."""
        assert self._window is not None
        position = log_position(steps.connection)
        # A standby does not know which transactions run.
        if self._is_rare(numbers, self._window) and not position.endswith(STANDBY):
            self._known = self._state(numbers.copy(), 0, self._window, position)
            self._is_current = True
            self._memory.keep(self._key, self._known)
        else:
            self._memory.note_too_many(self._key, self._window)

    @property
    def may_be_known(self) -> bool:
        """Whether the steps are known, or will be after a scan of this draw."""
        assert self._window is not None
        return self._known is not None or self._memory.may_keep(self._key, self._window)

    def forget(self) -> None:
        """Forget the steps: some of them do not match, so that changes are missing in the log."""
        self._known = None
        self._memory.forget(self._key)

    @staticmethod
    def _is_rare(numbers: Integers, window: SampledWindow) -> bool:
        most = min(MOST_NUMBERS, int(window.span * RARE))
        return len(numbers) <= most

    def _state(
        self, numbers: Integers, settled: int, window: SampledWindow, position: str
    ) -> Known:
        newly_settled = window.high if self._settled is None else min(self._settled, window.high)
        return Known(numbers, max(settled, newly_settled), window, position, self._epoch)

    def _continued(self, known: Known, steps: Steps) -> Known | None:
        """Return the steps that match now; None if they must be found by a scan."""
        window, connection = self._window, steps.connection
        assert window is not None
        if not known.may_precede(window, self._epoch):
            return None
        numbers, to_test = known.numbers, set[int]()
        position = log_position(connection)
        if position != known.position:
            entries = changes_since(
                connection, steps.buffer_id, known.position, position, MOST_CHANGES
            )
            if entries is None:
                return None
            deleted = [
                seq for entry in entries if entry.kind == "deleted" for seq in entry.seqs or ()
            ]
            numbers = np.setdiff1d(numbers, np.array(deleted, np.int64), assume_unique=True)
            to_test = self._changed(entries)
            if any(entry.seqs is None for entry in entries):  # plain SQL deleted some
                to_test.update(numbers.tolist())
        if self._memory.evicts_groups and not known.has_all_of(window):
            # Without followers no entry says which steps left.
            to_test.update(numbers.tolist())
        tested = sorted(seq for seq in to_test if window.low < seq <= known.settled)
        if len(tested) > window.span * RARE:
            return None
        numbers = numbers[: np.searchsorted(numbers, known.settled, side="right")]
        if tested:
            matching = [steps.matching_among(part) for part in _parts(tested)]
            others = np.setdiff1d(numbers, np.array(tested, np.int64), assume_unique=True)
            numbers = np.sort(np.concatenate([others, *map(_integers, matching)]))
        new = steps.scan(max(known.settled, window.low), window.high)
        numbers = np.concatenate([numbers, new])
        numbers = numbers[np.searchsorted(numbers, window.low, side="right") :]
        if not self._is_rare(numbers, window):
            return None
        return self._state(numbers, known.settled, window, position)

    def _changed(self, entries: Sequence[ChangeEntry]) -> set[int]:
        """Return the steps that may match since a change, or no longer."""
        kinds = {"quarantined", "replaced"}
        if any(field.column in LATE for field in _fields_of(self._node)):
            kinds.add("labelled")
        return {seq for entry in entries if entry.kind in kinds for seq in entry.seqs or ()}


def _parts(seqs: Sequence[int]) -> Iterator[Sequence[int]]:
    return (seqs[i : i + TESTED_AT_ONCE] for i in range(0, len(seqs), TESTED_AT_ONCE))


def _integers(seqs: Sequence[int]) -> Integers:
    return np.array(seqs, np.int64)


def _fields_of(node: Node) -> Iterator[Field]:
    """Yield the fields that a condition names."""
    if isinstance(node, Group):
        for part in node.parts:
            yield from _fields_of(part)
    else:
        yield node.field


def _is_covered_by_log(node: Node) -> bool:
    """Return True if the change log tells when another step may match, and no index finds them."""
    if statements.names_few_rows(node):
        return False
    return all(
        field.column in _CONSTANT_FACTS if field.is_of_episode else field.column not in _UNLOGGED
        for field in _fields_of(node)
    )
