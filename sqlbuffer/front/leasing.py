"""Leases: rows that one process holds for a limited time."""

import logging
import os
import threading
import time
from functools import cached_property
from types import TracebackType
from typing import NoReturn, get_args

import numpy as np

from sqlbuffer.checks import (
    checked_choice,
    checked_duration,
    checked_flag,
    checked_integer,
    checked_number,
    checked_seconds,
)
from sqlbuffer.display import html_code
from sqlbuffer.encoding.records import Decoder
from sqlbuffer.errors import ArgumentError, BufferConfigError, LeaseLostError, SQLBufferError
from sqlbuffer.front.checkpoints import checked_optional_name
from sqlbuffer.front.row_batch import RowBatch
from sqlbuffer.llm.tokens import Facts
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.steps import DataRow
from sqlbuffer.storage.labels.reading import resolve_labels
from sqlbuffer.storage.leases import leases
from sqlbuffer.storage.leases.choosing import (
    GROUPS,
    ClaimRequest,
    GroupBy,
    Incomplete,
    OnFlat,
    OnLate,
    OnPartial,
    Order,
)
from sqlbuffer.storage.leases.leases import LeasedRows, claimed
from sqlbuffer.storage.rows.layouts import layout_of
from sqlbuffer.storage.store import BufferStore

logger = logging.getLogger("sqlbuffer")


class LeasedBatch(RowBatch):
    """A batch that no other process gets while it is leased; see `ReplayBuffer.lease`.

    Its rows are in memory, so they stay readable after they leave the buffer.

    Attributes:
        seqs: Numbers of the rows, int64 of shape (n,).
        lease_id: Id of the lease, as in `v_leases`.
        batch_id: Number of the batch in the sample log (`track_samples`); None if it is not logged.
        consumer: Who leased it, if a name was given.
        n_skipped: Number of groups that the claim looked at and skipped because of `min_spread`.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", leases=True, max_use=1)
        >>> for step in range(3):
        ...     _ = buffer.add(state=step, actions=[0], step=step)
        >>> with buffer.lease(2, order="fifo") as batch:
        ...     batch.renew(lease_s=60)
        ...     [row.exp_data.state for row in batch], batch.arrays(["reward"]).n_rows
        ([0, 1], 2)
        >>> batch = buffer.lease(1).take()
        >>> batch.rows[0].exp_data.state, len(buffer)
        (2, 1)
        >>> batch.ack()
        >>> len(buffer)
        0
        >>> _ = buffer.add(state=3, actions=[0])
        >>> buffer.lease(1).take().nack()
    """

    def __init__(self, store: BufferStore, decoder: Decoder, leased: LeasedRows) -> None:
        self._store, self._decoder, self._leased = store, decoder, leased
        self._layout, self._structure = store.layout, store.info.config.fields.structure
        self._end: str | None = None  # the call that ended it
        self.seqs = np.array(leased.seqs, np.int64)
        self.lease_id, self.batch_id, self.consumer = (
            leased.lease_id,
            leased.number,
            leased.consumer,
        )
        self.n_skipped = leased.n_skipped

    @property
    def rows(self) -> list[DataRow]:
        """The rows; with groups, one group after the other. Those of a batch that another process
        has leased are read at the first use, without those that were deleted.
        """
        return self._rows_and_groups[0]

    @cached_property
    def _rows_and_groups(self) -> tuple[list[DataRow], list[list[DataRow]]]:
        if not self._leased.groups:
            leases.read_rows(self._store.leases, self._leased)
        groups = [self._decoder.rows(group) for group in self._leased.groups]
        return [row for group in groups for row in group], groups

    @property
    def groups(self) -> list[list[DataRow]]:
        """The rows of each group, in the order of `get_by_task_id`; empty if single rows are
        leased.
        """
        return [] if self._leased.sizes is None else self._rows_and_groups[1]

    def _grouped(self) -> tuple[list[list[DataRow]], Facts]:
        if self._leased.sizes is None:
            raise ArgumentError(
                f"lease {self.lease_id} holds single rows: lease groups of rollouts with "
                f"lease(n, group_by='task_id'), 'group_id' or 'episode_id'"
            )
        return self.groups, self._leased.episodes

    @property
    def remaining_s(self) -> float:
        """Seconds until the lease expires; 0 if it has expired or ended."""
        return 0.0 if self._end else max(0.0, self._leased.deadline - time.monotonic())

    @property
    def has_ended(self) -> bool:
        """True after `ack` or `nack`, also that of the end of a block."""
        return self._end is not None

    def ack(self) -> None:
        """Acknowledge the batch: a use of each row is counted, and used-up rows leave the buffer.

        Rows that were deleted meanwhile are not counted. A second call does nothing.

        Raises:
            LeaseLostError: The lease has expired, or the batch was given back; nothing is counted.
        """
        if self._end == "nack":
            raise self._over("given back", "acknowledged")
        if self._end is None:
            leases.acknowledge(self._store.leases, self._leased)
            self._end = "ack"

    def nack(self) -> None:
        """Give the batch back: its rows are free immediately, and no use is counted.

        A second call does nothing, nor does one after the lease has expired.

        Raises:
            LeaseLostError: The batch was acknowledged.
        """
        if self._end == "ack":
            raise self._over("acknowledged", "given back")
        if self._end is None:
            leases.give_back(self._store.leases, self._leased)
            self._end = "nack"

    def renew(self, lease_s: float | None = None) -> None:
        """Extend the lease: it expires lease_s seconds from now.

        Args:
            lease_s: Seconds until it expires; by default the same as at the start.

        Raises:
            ArgumentError: `lease_s` is not a number of seconds above 0.
            LeaseLostError: The lease has expired, or the batch was acknowledged or given back.
        """
        lease_s = self._leased.lease_s if lease_s is None else checked_duration(lease_s, "lease_s")
        if self._end is not None:
            raise self._over("acknowledged" if self._end == "ack" else "given back", "renewed")
        leases.renew(self._store.leases, self._leased, lease_s)

    def _over(self, end: str, call: str) -> LeaseLostError:
        return LeaseLostError(
            f"buffer {self._store.info.name!r}: lease {self.lease_id} was {end}, or its block has "
            f"ended, so it cannot be {call}; call lease() for another batch"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a leased batch is not pickled: send batch.rows or batch.arrays(), or its lease_id, "
            "and find it with buffer.leases() there"
        )

    def __repr__(self) -> str:
        sizes = self._leased.sizes
        groups = "" if sizes is None else f"{len(sizes)} groups, "
        consumer = "" if self.consumer is None else f", consumer={self.consumer!r}"
        return f"LeasedBatch({groups}{len(self.seqs)} rows, lease_id={self.lease_id!r}{consumer})"


class Lease:
    """A lease that a `with` block or `take` claims; `ReplayBuffer.lease` makes it.

    Args:
        store: The buffer.
        decoder: Decoder that makes rows.
        request: The rows or groups to claim.
        timeout_s: Seconds to wait for them.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", leases=True)
        >>> _ = buffer.add(state=1, actions=[0])
        >>> lease = buffer.lease(1, timeout_s=0)
        >>> with lease as batch:
        ...     len(batch)
        1
    """

    def __init__(
        self, store: BufferStore, decoder: Decoder, request: ClaimRequest, timeout_s: float
    ) -> None:
        self._store, self._decoder, self._request = store, decoder, request
        self._timeout_s = timeout_s
        self._cancelled = threading.Event()
        self._batch: LeasedBatch | None = None
        self._pid = 0

    def take(self) -> LeasedBatch:
        """Claim the batch, for as long as `lease_s`; end it with `batch.ack()` or `batch.nack()`.

        Raises:
            BufferConfigError: The buffer is closed.
            InsufficientDataError: Too few rows or groups were there in time.
            FlowControlError: The rate limiter did not admit the batch in time.
            RuntimeError: This lease was taken before.
        """
        self._store.check_open()
        if self._batch is not None:
            raise RuntimeError("the lease is taken already; call lease() for each batch")
        keeping = self._store.leases
        leased = claimed(keeping, self._request, self._timeout_s, self._cancelled)
        batch = LeasedBatch(self._store, self._decoder, leased)
        self._batch, self._pid = batch, os.getpid()
        try:
            leases.complete(keeping, leased)
            _ = batch.rows
        except BaseException:
            self._batch = None
            _give_back(batch)
            raise
        return batch

    def __enter__(self) -> LeasedBatch:
        return self.take()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        batch = self._batch
        if batch is None or batch.has_ended or self._pid != os.getpid():
            return  # a forked child: the batch is its parent's
        if kind is None:
            batch.ack()
        else:
            _give_back(batch)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a lease belongs to the process that takes it; send the buffer, and call lease() there"
        )

    def __repr__(self) -> str:
        request, batch = self._request, self._batch
        state = "not taken" if batch is None else "ended" if batch.has_ended else "held"
        groups = f", group_by={request.group_by!r}" if request.group_by else ""
        return f"Lease({request.n}, order={request.order!r}{groups}, {state})"

    def _repr_html_(self) -> str:
        """Return its repr, for notebooks."""
        return html_code(repr(self))

    def cancel(self) -> None:
        """Make a call that waits for this lease in another thread raise InsufficientDataError."""
        self._cancelled.set()


def _give_back(batch: LeasedBatch) -> None:
    """Give a batch back; where that fails its rows are free when the lease runs out."""
    try:
        batch.nack()
    except SQLBufferError as error:
        logger.warning("%s; its rows are free again when the lease runs out", error)


class Leasing:
    """Opens leases.

    Args:
        store: The buffer.
        decoder: Makes rows.
    """

    def __init__(self, store: BufferStore, decoder: Decoder) -> None:
        self._store, self._decoder = store, decoder

    def lease(
        self,
        n: int,
        node: Node,
        every: Node,
        *,
        group_by: GroupBy | None,
        min_group_size: int | None,
        group_size: int | None,
        group_timeout_s: float | None,
        on_partial: OnPartial,
        on_late: OnLate,
        incomplete: Incomplete,
        require_reward: bool,
        min_spread: float | None,
        on_flat: OnFlat,
        order: Order,
        timeout_s: float,
        lease_s: float,
        consumer: str | None,
    ) -> Lease:
        """Return a lease to take; see `ReplayBuffer.lease`."""
        self._check()
        checked_choice(order, "order", get_args(Order))
        checked_choice(on_partial, "on_partial", get_args(OnPartial))
        checked_choice(on_late, "on_late", get_args(OnLate))
        checked_choice(on_flat, "on_flat", get_args(OnFlat))
        checked_choice(incomplete, "incomplete", get_args(Incomplete))
        require_reward = checked_flag(require_reward, "require_reward")
        if group_by is not None:
            checked_choice(group_by, "group_by", tuple(GROUPS))
        if min_group_size is not None:
            min_group_size = checked_integer(min_group_size, "min_group_size", 1)
        if group_size is not None:
            group_size = checked_integer(group_size, "group_size", 1)
        if group_timeout_s is not None:
            group_timeout_s = checked_duration(group_timeout_s, "group_timeout_s")
        min_spread = _checked_spread(group_by, min_spread, on_flat, order)
        _check_groups(group_by, min_group_size, group_size, group_timeout_s, on_partial, on_late)
        for name, is_given in (
            ("every", every != EVERYTHING), ("require_reward", require_reward),
            ("incomplete='include'", incomplete == "include"),
            ("on_late='drop'", on_late == "drop"),
        ):  # fmt: skip
            if is_given and group_by is None:
                raise ArgumentError(f"{name} goes with group_by")
        request = ClaimRequest(
            checked_integer(n, "n", 1),
            checked_duration(lease_s, "lease_s"),
            order,
            resolve_labels(node, True),  # a claim has its statement before it knows
            group_by,
            min_group_size or group_size or 1,
            group_size,
            group_timeout_s,
            on_partial == "drop",
            on_late == "drop",
            incomplete == "include",
            resolve_labels(every, True),
            require_reward or min_spread is not None,
            min_spread,
            on_flat == "drop",
            self._store.info.config.sampling.max_use != 1,
            layout_of(self._store.info),
            checked_optional_name(consumer, "consumer"),
        )
        return Lease(self._store, self._decoder, request, checked_seconds(timeout_s, "timeout_s"))

    def live(self, consumer: str | None) -> list[LeasedBatch]:
        """Return the batches on lease; see `ReplayBuffer.leases`."""
        self._check()
        live = leases.live_leases(self._store.leases, checked_optional_name(consumer, "consumer"))
        return [LeasedBatch(self._store, self._decoder, leased) for leased in live]

    def _check(self) -> None:
        if not self._store.info.config.leases.enabled:
            raise BufferConfigError(
                f"buffer {self._store.info.name!r} was made without leases; make one with "
                f"ReplayBuffer(..., leases=True)"
            )


def _checked_spread(
    group_by: str | None, min_spread: float | None, on_flat: str, order: str
) -> float | None:
    for name, is_given in (
        ("min_spread", min_spread is not None),
        ("order='spread'", order == "spread"),
    ):
        if is_given and group_by not in ("task_id", "group_id"):
            raise ArgumentError(
                f"{name} goes with group_by='task_id' or 'group_id': it compares the rewards of "
                f"the rollouts of a group"
            )
    if on_flat == "drop" and min_spread is None:
        raise ArgumentError("on_flat='drop' goes with min_spread")
    return None if min_spread is None else checked_number(min_spread, "min_spread", 0.0)


def _check_groups(
    group_by: str | None,
    min_group_size: int | None,
    group_size: int | None,
    group_timeout_s: float | None,
    on_partial: str,
    on_late: str,
) -> None:
    if group_by is None:
        for name, value in (
            ("min_group_size", min_group_size),
            ("group_size", group_size),
            ("group_timeout_s", group_timeout_s),
        ):
            if value is not None:
                raise ArgumentError(f"{name} goes with group_by")
    for name, value in (("min_group_size", min_group_size), ("group_size", group_size)):
        if group_by == "episode_id" and value not in (None, 1):
            raise ArgumentError(
                f"{name} goes with group_by='task_id' or 'group_id': an episode is one rollout"
            )
    if min_group_size is not None and group_size is not None:
        raise ArgumentError(
            "give min_group_size=... for groups of at least that size, or group_size=... for "
            "exactly that many rollouts of each"
        )
    if on_late == "drop" and group_by == "episode_id":
        raise ArgumentError(
            "on_late='drop' goes with group_by='task_id' or 'group_id': an episode has no siblings"
        )
    if on_partial == "drop" and group_timeout_s is None:
        raise ArgumentError("on_partial='drop' goes with group_by and group_timeout_s")
