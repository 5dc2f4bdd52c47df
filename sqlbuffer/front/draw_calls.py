"""The calls that draw batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlbuffer.arguments import (
    MAX_LIMIT,
    Condition,
    check_batch_size,
    check_n_step,
    check_sufficient,
    described,
    ineligible_rows,
)
from sqlbuffer.front.shared import Parts
from sqlbuffer.loading.factory import open_loader
from sqlbuffer.loading.loader import Loader
from sqlbuffer.loading.modes import LoaderOptions as LoaderOptions
from sqlbuffer.loading.output import Output
from sqlbuffer.loading.ranks import warn_of_ranks
from sqlbuffer.query.condition_tree import Node
from sqlbuffer.samplers import RandomSampler, RandomTaskSample, Sampler, TaskSampler
from sqlbuffer.steps.batches import Batch, RowList
from sqlbuffer.steps.converters import Converter
from sqlbuffer.storage.draws import sample_batch, sample_rows, sample_tasks
from sqlbuffer.storage.sampling.readers.base import BatchReader
from sqlbuffer.storage.sampling.readers.single_steps import StepReader
from sqlbuffer.storage.sampling.readers.transitions import TransitionReader

AnyConverter = Converter[Any] | Callable[[Any], Any]


class Sampling(Parts):
    """The calls of `ReplayBuffer` that draw batches."""

    def sample_arrays(
        self,
        batch_size: int = 256,
        *,
        fields: Sequence[str] | None = None,
        sampler: Sampler | None = None,
        condition: Condition = None,
    ) -> Batch:
        """Draw rows as arrays.

        Args:
            batch_size: How many rows.
            fields: Which of the declared fields, `reward`, `terminated` and `truncated`; all by
                default.
            sampler: Which rows; `RandomSampler(replace=True)` by default.
            condition: Which rows may be drawn.

        Returns:
            A batch of arrays of shape (batch_size, *shape); `reward` is float32.

        Raises:
            InsufficientDataError: Fewer rows were drawn: with the default sampler none matches.
            FieldError: An unknown field.
        """
        node = self._node(condition)
        sampler = RandomSampler(replace=True) if sampler is None else _checked(sampler)
        check_batch_size(batch_size)
        reader = StepReader(self._store.info.fields, fields, self._store.info.compression)
        return self._draw(reader, sampler, batch_size, node)

    def sample_transitions(
        self,
        batch_size: int = 256,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: Mapping[str, int] | None = None,
        terminal_field: str | None = None,
        fields: Sequence[str] | None = None,
        sampler: Sampler | None = None,
        condition: Condition = None,
    ) -> Batch:
        """Draw transitions: steps with their n-step returns and the observations after them.

        For step t of an episode, m is n_step, or the steps to the episode's end where they are
        fewer: `reward` is the sum of gamma^k r_(t+k) for k < m, `discount` is gamma^m, or 0 where
        the episode terminated within, and `next_obs` the observation at t + m, or the final one of
        the episode (Sutton and Barto 2018, section 7.1). A declared field `next_obs` is used as it
        is. Steps whose successors are not stored are not drawn: those before a truncated end
        without a final observation, say. A terminated end without one has zeros.

        Args:
            batch_size: How many.
            n_step: How many steps a transition spans at most.
            gamma: Discount of one step.
            stack: `{"obs": 4}`: each observation as its last 4 frames, of shape (batch_size, 4,
                *shape), the oldest first; at an episode's start the first frame is repeated.
            terminal_field: The declared field, such as `done`, that tells where an episode
                terminated, for buffers that do not store `terminated`.
            fields: Which of the declared fields; all by default.
            sampler: Which first steps; `RandomSampler(replace=True)` by default.
            condition: Which first steps may be drawn.

        Returns:
            A batch of arrays of shape (batch_size, *shape): the fields, `reward` and `discount`
            (float32), `terminated`, and `next_<name>` for each observation field; in `info` also
            `episode`, `t` and `n_steps`, which is m.

        Raises:
            InsufficientDataError: Too few steps have their successors stored.
            FieldError: An unknown field, no observation field, or a field `done` where neither
                `terminated` nor `truncated` is stored and no `terminal_field` is given.
        """
        node = self._node(condition)
        sampler = RandomSampler(replace=True) if sampler is None else _checked(sampler)
        check_batch_size(batch_size)
        check_n_step(n_step, gamma)
        info = self._store.info
        reader = TransitionReader(
            info.fields,
            int(n_step),
            float(gamma),
            names=fields,
            stack=stack,
            terminal_field=terminal_field,
            compression=info.compression,
        )
        return self._draw(reader, sampler, batch_size, node)

    def loader(
        self,
        mode: str = "transition",
        batch_size: int = 256,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        length: int | None = None,
        burn_in: int = 0,
        stride: int = 1,
        sequence_fields: Sequence[str] = (),
        stack: Mapping[str, int] | None = None,
        terminal_field: str | None = None,
        include_partial: bool = False,
        shuffle: bool = True,
        seed: int | None = None,
        drop_last: bool = False,
        replace: bool = False,
        sampler: Sampler | None = None,
        condition: Condition = None,
        fields: Sequence[str] | None = None,
        to_named_tuple: Sequence[str] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        device: Any = None,
        prefetch: int = 0,
        epochs: int | None = None,
    ) -> Loader:
        """Return an iterable of batches for a training loop: drawn without end, or in passes.

        A pass (`epochs`, or `shuffle=False`) fixes the range of seq at its start, so that rows
        stored later do not enter it, visits what is there once and skips what is evicted meanwhile.
        An empty buffer has a pass without batches.

        Args:
            mode: What a batch holds: `step`, rows as `sample_arrays`; `transition`, as
                `sample_transitions`; `n_step`, transitions with the sequences of chosen fields;
                `window`, stretches of one length; `trajectory`, whole episodes.
            batch_size: How many of them.
            n_step: Modes `transition` and `n_step`: how many steps a transition spans at most.
            gamma: The same modes: discount of one step.
            length: Mode `window`: how many steps.
            burn_in: Mode `window`: how many steps before it.
            stride: Mode `window`: how far one begins behind the other.
            sequence_fields: Mode `n_step`: fields whose values of each step are wanted.
            stack: Modes `transition`, `n_step` and `window`: `{field: how many frames}`.
            terminal_field: Modes `transition` and `n_step`: the field that says an episode ended.
            include_partial: Mode `trajectory`: episodes that are open or clipped as well.
            shuffle: False: passes in the order of seq, one after the other.
            seed: Repeat the same batches over the same live rows.
            drop_last: Leave out the last batch of a pass where it is smaller.
            replace: Draw with replacement.
            sampler: Draws the batches; uniform by default.
            condition: Which rows; see the mode's own call for what of it must match.
            fields: Which of the declared fields; all by default.
            to_named_tuple: Batches are named tuples of these arrays, in this order, without
                leading underscores; `info` is the batch's info.
            fieldname_map: `{name: other name}` of arrays.
            device: `cpu`, `cuda` or another of torch: arrays become tensors there, but for texts
                and objects, which torch has no tensors for, and `info`.
            prefetch: How many batches a thread fetches ahead.
            epochs: How many passes; without, batches are drawn without end.

        Raises:
            InsufficientDataError: In the loop: fewer were drawn than a batch holds, or a pass
                without end finds no batch.
            BufferConfigError: Passes over a buffer with `max_use`, whose rows are counted as they
                are drawn.
            FieldError: An unknown field, or names that collide.
            ValueError: An option that the mode does not take, or options that exclude each other.
            MissingExtraError: A device, and torch is not installed.
        """
        options = LoaderOptions(
            mode=mode, batch_size=batch_size, n_step=n_step, gamma=gamma, length=length,
            burn_in=burn_in, stride=stride, sequence_fields=sequence_fields, stack=stack,
            terminal_field=terminal_field, include_partial=include_partial, shuffle=shuffle,
            seed=seed, drop_last=drop_last, replace=replace, sampler=sampler, condition=condition,
            fields=fields, epochs=epochs,
        )  # fmt: skip
        output = Output(fieldname_map, to_named_tuple, device)
        warn_of_ranks(passes=not options.is_drawn, seeded=seed is not None)
        return open_loader(self._store, options, output, prefetch)

    def sample(
        self,
        batch_size: int = 256,
        *,
        sampler: Sampler | TaskSampler | None = None,
        condition: Condition = None,
        converter: AnyConverter | None = None,
        strict: bool = False,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> Any:
        """Draw a batch.

        Args:
            batch_size: How many rows, or tasks with a task sampler. When fewer match, all that
                match come back.
            sampler: Which rows; `RandomSampler()` by default.
            condition: Which rows may be drawn, or with a task sampler which tasks.
            converter: Called once, on the whole batch.
            strict: Raise when fewer match.
            fields: Which fields of each row are read and come back, by dotted names such as
                `["state.image", "reward_t"]`; all by default, keys always. What a row does not have
                is left out. See `docs/fragments.md`.
            query_condition: Other name of `condition`.

        Returns:
            A `RowList` of rows, or with a task sampler of tasks, each a list of rows in the order
            of (episode, step, execute_time); `batch_id` is the number that it is noted under
            (`track_samples`). Or what the converter makes of it.

        Raises:
            ConditionError: A malformed condition.
            FieldError: An unknown field.
            InsufficientDataError: Fewer match and `strict` is set.
            ValueError: A negative batch size.
        """
        node = self._node(condition, query_condition)
        sampler = RandomSampler() if sampler is None else sampler
        check_batch_size(batch_size)
        if isinstance(sampler, TaskSampler):
            batch: Any = self._sample_tasks(sampler, batch_size, node, strict, fields)
        elif isinstance(sampler, Sampler):
            batch = self._sample_rows(sampler, batch_size, node, strict, fields)
            if batch and not (strict and len(batch) < batch_size):
                sampler.handed_out()
        else:
            raise TypeError(f"sampler is a Sampler or a TaskSampler, got {described(sampler)}")
        check_sufficient(len(batch), batch_size, strict, self._ineligible(sampler))
        return _convert(converter, batch)

    def sample_tasks(
        self,
        n: int,
        *,
        sampler: TaskSampler | None = None,
        condition: Condition = None,
        converter: AnyConverter | None = None,
        strict: bool = False,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> list[Any]:
        """Draw whole tasks: `RandomTaskSample()` by default. The converter is called once a task.

        Args:
            n: How many tasks. When fewer match, all that match come back.
            sampler: Which tasks.
            condition: A task can be drawn if one of its rows matches; all its rows come back.
            converter: Called once for each task.
            strict: Raise when fewer match.
            fields: Which fields of each row; see `sample`.
            query_condition: Other name of `condition`.

        Returns:
            A `RowList` of tasks, each a list of rows in the order of (episode, step,
            execute_time), or what the converter makes of them; `batch_id` is the number that
            they are noted under.

        Raises:
            ConditionError: A malformed condition.
            FieldError: An unknown field.
            InsufficientDataError: Fewer match and `strict` is set.
            ValueError: A negative n.
        """
        sampler = RandomTaskSample() if sampler is None else sampler
        if not isinstance(sampler, TaskSampler):
            raise TypeError(
                f"sample_tasks takes a TaskSampler, got {described(sampler)}; use sample() for rows"
            )
        node = self._node(condition, query_condition)
        check_batch_size(n)
        tasks = self._sample_tasks(sampler, n, node, strict, fields)
        check_sufficient(len(tasks), n, strict, self._ineligible(sampler))
        return RowList((_convert(converter, task) for task in tasks), batch_id=tasks.batch_id)

    def sample_task(
        self,
        sampler: TaskSampler | None = None,
        query_condition: Condition = None,
        converter: AnyConverter | None = None,
        batch_size: int = 1000,
    ) -> list[Any]:
        """Draw whole tasks: `sample_tasks` by AWorld's name and arguments."""
        return self.sample_tasks(
            batch_size, sampler=sampler, condition=query_condition, converter=converter
        )

    def _draw(self, reader: BatchReader, sampler: Sampler, batch_size: int, node: Node) -> Batch:
        n = min(int(batch_size), MAX_LIMIT)
        batch = sample_batch(self._store, node, reader, sampler, n)
        check_sufficient(batch.n_rows, batch_size, True, self._ineligible(sampler))
        if n:
            sampler.handed_out()
        return batch

    def _ineligible(self, sampler: Sampler | TaskSampler) -> str:
        by_priority = isinstance(sampler, Sampler) and sampler.reads_priorities
        quarantine = self._store.restrictions.has_quarantine
        return ineligible_rows(self._store.info, by_priority=by_priority, quarantine=quarantine)

    def _sample_rows(
        self,
        sampler: Sampler,
        batch_size: int,
        node: Node,
        strict: bool,
        fields: Sequence[str] | None,
    ) -> RowList:
        payloads, decoder = self._partly(fields)
        if batch_size == 0 and not sampler.reads_priorities:
            return RowList()
        n = min(int(batch_size), MAX_LIMIT)
        drawn = sample_rows(self._store, node, sampler, n, n if strict else 0, payloads)
        rows = decoder.rows(drawn.rows)
        return RowList(rows, drawn.columns, drawn.batch_id)

    def _sample_tasks(
        self,
        sampler: TaskSampler,
        batch_size: int,
        node: Any,
        strict: bool,
        fields: Sequence[str] | None,
    ) -> RowList:
        payloads, decoder = self._partly(fields)
        if batch_size == 0:
            return RowList()
        n = min(int(batch_size), MAX_LIMIT)
        drawn, number = sample_tasks(self._store, node, sampler, n, n if strict else 0, payloads)
        return RowList((decoder.rows(rows) for rows in drawn if rows), batch_id=number)


def _checked(sampler: Any) -> Sampler:
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sampler is a Sampler of rows, got {described(sampler)}")
    return sampler


def _convert(converter: AnyConverter | None, value: Any) -> Any:
    if converter is None:
        return value
    if isinstance(converter, Converter):
        return converter.to_dataset_row(value)
    return converter(value)
