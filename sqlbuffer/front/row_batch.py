"""Batches of whole rows that were leased or drawn, and the rollouts in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import checked_integer
from sqlbuffer.encoding.columns import rows_as_arrays
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import Decoder
from sqlbuffer.errors import ArgumentError, BatchNotFoundError, BufferConfigError
from sqlbuffer.spaces import Structure
from sqlbuffer.steps import Batch, DataRow, RowList, rows_as_html
from sqlbuffer.storage.logged_batches import StoredBatch, read_logged
from sqlbuffer.storage.schema.expressions import listed, utc_time
from sqlbuffer.storage.store import BufferStore

if TYPE_CHECKING:
    from sqlbuffer.llm.advantages import Baseline, Scale
    from sqlbuffer.llm.padding import Side, TokenBatch, Truncation
    from sqlbuffer.llm.tokens import Facts, Rollout


class HasRollouts(ABC):
    """A batch of groups of rollouts of a language model."""

    @abstractmethod
    def _grouped(self) -> tuple[Sequence[Sequence[DataRow]], Facts]:
        """Return the rows of each group, and what is known of their episodes."""

    def rollouts(self, tokenizer: Any = None) -> list[Rollout]:
        """Return the rollouts of the batch, group by group: conversations, rewards and tokens.

        Steps of one episode are a rollout, in their order. A step without an episode is one of its
        own.

        Args:
            tokenizer: Makes token ids by its `apply_chat_template`, as those of transformers do,
                for turns that were stored without them.

        Raises:
            ArgumentError: The batch has no groups or parts of its rows, or the tokenizer has no
                `apply_chat_template`.
        """
        from sqlbuffer.llm.tokens import rollouts

        groups, facts = self._grouped()
        return rollouts(groups, facts, tokenizer)

    def padded(
        self,
        max_length: int | None = None,
        truncation: Truncation = "error",
        padding_side: Side = "right",
        pad_token_id: int = 0,
        device: Any = None,
        *,
        tokenizer: Any = None,
        baseline: Baseline = "mean",
        scale: Scale | None = "std",
        max_token_staleness: int | None = None,
        current_version: int | None = None,
    ) -> TokenBatch:
        """Return the tokens of all rollouts as padded arrays with their rewards and advantages.

        `sqlbuffer.llm.padded` has the arguments, the arrays and the errors, and takes rollouts that
        you have chosen.

        Args:
            max_length: Most tokens of a sequence; None for no limit.
            truncation: What becomes of a longer one: `error`, `left`, `right` or `drop`.
            padding_side: Where shorter sequences are padded: `right` or `left`.
            pad_token_id: Token of the padding.
            device: Device of torch tensors; None returns numpy arrays.
            tokenizer: See `rollouts`.
            baseline: What a reward is compared with: `mean` or `leave_one_out` of its group.
            scale: What the difference is divided by: `std`, or None for nothing.
            max_token_staleness: Most versions that a token may be behind; older ones are masked.
            current_version: Version of the model that is trained.

        Raises:
            ArgumentError: An option is invalid, or a sequence is longer than `max_length`.
            FieldError: Token ids are missing, or do not fit each other.
            MissingExtraError: `device` is given, and torch is not installed.
        """
        from sqlbuffer.llm.padding import padded

        return padded(
            self.rollouts(tokenizer), max_length, truncation, padding_side, pad_token_id, device,
            baseline=baseline, scale=scale, max_token_staleness=max_token_staleness,
            current_version=current_version,
        )  # fmt: skip


class TaskList(RowList[list[DataRow]], HasRollouts):
    """Tasks that were drawn, each a list of rows; `ReplayBuffer.sample_tasks` returns it.

    Its groups of rollouts go by `group_id`, and by task where an episode has none.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://")
        >>> for sibling in range(2):
        ...     with buffer.episode("sums", episode_id=f"sums/{sibling}") as episode:
        ...         episode.append(messages=["1 + 1?"], actions=[str(sibling + 1)])
        ...         episode.end(reward=float(sibling))
        >>> tasks = buffer.sample_tasks(1)
        >>> [(rollout.episode_id, rollout.reward) for rollout in tasks.rollouts()]
        [('sums/0', 0.0), ('sums/1', 1.0)]
    """

    def __init__(
        self, tasks: Iterable[list[DataRow]], facts: Facts | None, batch_id: int | None = None
    ) -> None:
        super().__init__(tasks, batch_id=batch_id)
        self._facts = facts

    def _grouped(self) -> tuple[Sequence[Sequence[DataRow]], Facts]:
        from sqlbuffer.llm.tokens import grouped

        if self._facts is None:
            raise ArgumentError("rollouts are made of whole rows: draw the tasks without fields=")
        return [group for task in self for group in grouped(task)], self._facts


class RowBatch(Sequence[DataRow], HasRollouts):
    """A batch of rows."""

    _layout: Layout
    _structure: Structure | None

    @property
    @abstractmethod
    def rows(self) -> list[DataRow]:
        """The rows, in the order of the batch."""

    def arrays(self, fields: Sequence[str] | None = None) -> Batch:
        """Return the rows as arrays of shape (n, *shape), as `sample_arrays` does.

        Args:
            fields: Fields to read, of the declared ones, `reward`, `terminated`, `truncated`,
                `adv_t` and `v_t`; all but the last two by default.

        Raises:
            FieldError: A field is unknown.
        """
        return rows_as_arrays(self._layout, self.rows, fields, self._structure)

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

    def _repr_html_(self) -> str:
        """Return a table of the first rows, for notebooks."""
        return rows_as_html(self.rows, repr(self))


class LoggedBatch(RowBatch):
    """A batch of the sample log as it was drawn; `ReplayBuffer.batch` returns it.

    Attributes:
        seqs: Numbers of all rows of the batch, int64 of shape (n,).
        missing: Numbers of the rows that have left the buffer, each once, in order.
        batch_id: Number of the batch.
        clock: The buffer's clock at that time; None before the first.
        sampler: Name of the sampler; `lease (...)` for a leased batch.
        seed: Seed of the sampler, as text; None without one.
        sampled_at: When it was drawn, by the database's clock.
        probabilities: Probability of each row of `seqs`, float64 of shape (n,); None if the sampler
            gave none.
        consumer: Who leased it, if a name was given.
        undone: True after the consumer went back to an earlier checkpoint.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "int64"}, track_samples=True)
        >>> _ = buffer.extend({"x": [1, 2], "reward": [0.0, 0.0]})
        >>> batch_id = buffer.sample_arrays(2).info["batch_id"][0]
        >>> _ = buffer.annotate([1, 2], reward=1.0)
        >>> batch = buffer.batch(batch_id)
        >>> batch.arrays().reward.tolist(), batch.seqs.shape, batch.missing
        ([0.0, 0.0], (2,), [])
    """

    def __init__(
        self,
        stored: StoredBatch,
        decoder: Decoder,
        layout: Layout,
        structure: Structure | None = None,
    ) -> None:
        entry, self._layout, self._structure = stored.entry, layout, structure
        decoded = decoder.rows(list(stored.rows.values()))
        row_of = dict(zip(stored.rows, decoded, strict=True))
        self._rows = [row_of[seq] for seq in stored.seqs if seq in row_of]
        self._facts = stored.episodes
        self.seqs: NDArray[np.int64] = np.array(stored.seqs, np.int64)
        self.missing: list[int] = sorted(set(stored.seqs) - row_of.keys())
        self.batch_id, self.clock = int(entry.id), entry.clock
        self.sampler, self.seed = entry.sampler, entry.seed
        self.sampled_at: datetime = utc_time(entry.sampled_at)
        probabilities = entry.probabilities
        self.probabilities: NDArray[np.float64] | None = (
            None if probabilities is None else np.array(listed(probabilities), np.float64)
        )
        self.consumer, self.undone = entry.consumer, bool(entry.undone)

    @property
    def rows(self) -> list[DataRow]:
        """The rows that the buffer still holds, in the order of the batch, with the labels that
        they had when it was drawn. A row that was drawn twice is here twice.
        """
        return self._rows

    def _grouped(self) -> tuple[Sequence[Sequence[DataRow]], Facts]:
        from sqlbuffer.llm.tokens import grouped

        return grouped(list({row.seq: row for row in self._rows}.values())), self._facts

    def __repr__(self) -> str:
        missing = f", {len(self.missing)} missing" if self.missing else ""
        return f"LoggedBatch({self.batch_id}, {len(self.seqs)} rows{missing})"


def logged_batch(store: BufferStore, decoder: Decoder, number: int) -> LoggedBatch:
    """Return a batch of the sample log; see `ReplayBuffer.batch`."""
    number, info = checked_integer(number, "batch_id", 1), store.info
    if not info.config.sampling.track_samples:
        raise BufferConfigError(
            f"buffer {info.name!r} logs no batches; make one with "
            f"ReplayBuffer(..., track_samples=True)"
        )
    stored = read_logged(store.source, number)
    if stored is None:
        raise BatchNotFoundError(
            f"buffer {info.name!r} has no batch {number} in its sample log: no batch has this "
            f"number, it was given back, or it is older than keep_samples_s "
            f"({info.config.sampling.keep_samples_s:g} s)"
        )
    return LoggedBatch(stored, decoder, store.layout, info.config.fields.structure)
