"""Leases: rows that one process holds for a limited time."""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NoReturn, SupportsIndex, get_args, overload

import numpy as np

from sqlbuffer.checks import (
    checked_choice,
    checked_duration,
    checked_flag,
    checked_integer,
    checked_seconds,
)
from sqlbuffer.display import html_code
from sqlbuffer.encoding.columns import rows_as_arrays
from sqlbuffer.encoding.records import Decoder
from sqlbuffer.errors import ArgumentError, BufferConfigError, LeaseLostError, SQLBufferError
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.steps import Batch, DataRow, rows_as_html
from sqlbuffer.storage.labels.reading import resolve_labels
from sqlbuffer.storage.leases import leases
from sqlbuffer.storage.leases.choosing import (
    GROUPS,
    ORDERS,
    ClaimRequest,
    GroupBy,
    Incomplete,
    OnLate,
    OnPartial,
    Order,
)
from sqlbuffer.storage.leases.leases import LeasedRows, claimed
from sqlbuffer.storage.rows.layouts import layout_of
from sqlbuffer.storage.store import BufferStore

logger = logging.getLogger("sqlbuffer")

TIMEOUT_S, LEASE_S = 30.0, 300.0
ENDED = float("-inf")  # the deadline of a batch whose block has


class LeasedBatch(Sequence[DataRow]):
    """A batch that no other process gets while it is leased; see `ReplayBuffer.lease`.

    Its rows are in memory, so they stay readable after they leave the buffer.

    Attributes:
        rows: The rows; with groups, one group after the other.
        groups: The rows of each group, in the order of `get_by_task_id`; empty if
            single rows are leased.
        seqs: Numbers of the rows, int64 of shape (n,).
        lease_id: Id of the lease, as in `v_leases`.
        batch_id: Number of the batch in the sample log (`track_samples`); None if it is not logged.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", leases=True, max_use=1)
        >>> for step in range(3):
        ...     _ = buffer.add(state=step, actions=[0], step=step)
        >>> with buffer.lease(2, order="fifo") as batch:
        ...     batch.renew(lease_s=60)
        ...     [row.exp_data.state for row in batch], batch.arrays(["reward"]).n_rows
        ([0, 1], 2)
        >>> len(buffer)
        1
    """

    def __init__(
        self,
        store: BufferStore,
        decoder: Decoder,
        leased: LeasedRows,
        lease_s: float,
        grouped: bool,
    ) -> None:
        self._store, self._leased, self._lease_s = store, leased, lease_s
        groups = [decoder.rows(group) for group in leased.groups]
        self.rows: list[DataRow] = [row for group in groups for row in group]
        self.groups: list[list[DataRow]] = groups if grouped else []
        self.seqs = np.array(leased.seqs, np.int64)
        self.lease_id, self.batch_id = leased.lease_id, leased.number

    @property
    def remaining_s(self) -> float:
        """Seconds until the lease expires; 0 if it has expired or its block has ended."""
        return max(0.0, self._leased.deadline - time.monotonic())

    def renew(self, lease_s: float | None = None) -> None:
        """Extend the lease: it expires lease_s seconds from now.

        Args:
            lease_s: Seconds until it expires; by default the same as at the start.

        Raises:
            ArgumentError: `lease_s` is not a number of seconds above 0.
            LeaseLostError: The lease has expired, or its block has ended.
        """
        lease_s = self._lease_s if lease_s is None else checked_duration(lease_s, "lease_s")
        if self._leased.deadline == ENDED:
            raise LeaseLostError(
                f"buffer {self._store.info.name!r}: lease {self.lease_id} has ended with its "
                f"block; renew it inside, and call lease() for another batch"
            )
        leases.renew(self._store.leases, self._leased, lease_s)

    def arrays(self, fields: Sequence[str] | None = None) -> Batch:
        """Return the rows as arrays of shape (n, *shape), as `sample_arrays` does.

        Args:
            fields: Fields to read, of the declared ones, `reward`, `terminated`, `truncated`,
                `adv_t` and `v_t`; all but the last two by default.

        Raises:
            FieldError: A field is unknown.
        """
        return rows_as_arrays(self._store.layout, self.rows, fields)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: SupportsIndex) -> DataRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[DataRow]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[DataRow]:
        return iter(self.rows)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a leased batch belongs to the process that leased it; send batch.rows or "
            "batch.arrays() instead"
        )

    def __repr__(self) -> str:
        groups = f"{len(self.groups)} groups, " if self.groups else ""
        return f"LeasedBatch({groups}{len(self.rows)} rows, lease_id={self.lease_id!r})"

    def _repr_html_(self) -> str:
        """Return a table of the first rows, for notebooks."""
        return rows_as_html(self.rows, repr(self))


class Lease:
    """A lease for a `with` block; `ReplayBuffer.lease` makes it.

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
        self._leased: LeasedRows | None = None
        self._pid = 0

    def __enter__(self) -> LeasedBatch:
        if self._leased is not None:
            raise RuntimeError("the lease is taken already; call lease() for each with block")
        leased = claimed(self._store.leases, self._request, self._timeout_s, self._cancelled)
        self._leased, self._pid = leased, os.getpid()
        try:
            leases.complete(self._store.leases, leased)
            return LeasedBatch(
                self._store, self._decoder, leased, self._request.lease_s,
                self._request.group_by is not None,
            )  # fmt: skip
        except BaseException:
            self._give_back()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._leased is None or self._pid != os.getpid():
            return  # a forked child: the batch is its parent's
        if kind is None:
            leased, self._leased = self._leased, None
            leased.deadline = ENDED
            leases.acknowledge(self._store.leases, leased)
        else:
            self._give_back()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a lease belongs to the process that takes it; send the buffer, and call lease() there"
        )

    def __repr__(self) -> str:
        request, state = self._request, "held" if self._leased is not None else "not held"
        groups = f", group_by={request.group_by!r}" if request.group_by else ""
        return f"Lease({request.n}, order={request.order!r}{groups}, {state})"

    def _repr_html_(self) -> str:
        """Return its repr, for notebooks."""
        return html_code(repr(self))

    def cancel(self) -> None:
        """Make a call that waits for this lease in another thread raise InsufficientDataError."""
        self._cancelled.set()

    def _give_back(self) -> None:
        """Give the rows back; where that fails they are free when the lease runs out."""
        leased, self._leased = self._leased, None
        if leased is None:
            return
        leased.deadline = ENDED
        try:
            leases.give_back(self._store.leases, leased)
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
        order: Order,
        timeout_s: float,
        lease_s: float,
    ) -> Lease:
        """Return a lease that is taken by a `with` block; see `ReplayBuffer.lease`."""
        if not self._store.info.config.leases.enabled:
            raise BufferConfigError(
                f"buffer {self._store.info.name!r} was made without leases; make one with "
                f"ReplayBuffer(..., leases=True)"
            )
        checked_choice(order, "order", ("random", *ORDERS))
        checked_choice(on_partial, "on_partial", get_args(OnPartial))
        checked_choice(on_late, "on_late", get_args(OnLate))
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
            require_reward,
            layout_of(self._store.info),
        )
        return Lease(self._store, self._decoder, request, checked_seconds(timeout_s, "timeout_s"))


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
