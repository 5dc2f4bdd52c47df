"""Batches that are drawn from several buffers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, Unpack, get_args, overload

import numpy as np

from sqlbuffer.batches.hindsight import HindsightGoals
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import (
    checked_choice,
    checked_dict,
    checked_integer,
    checked_names,
    checked_number,
    refused,
)
from sqlbuffer.errors import ArgumentError, FieldError, InsufficientDataError, SQLBufferError
from sqlbuffer.loading.loader import Loader, Output, joined
from sqlbuffer.loading.modes import LoaderOptions, LoaderSettings, Mode, options_of
from sqlbuffer.loading.plans import (
    BatchSource,
    LoaderRun,
    Progress,
    is_count,
    knows_sampler,
    own_sampler,
    sampler_progress,
)
from sqlbuffer.samplers import RandomSampler, Sampler
from sqlbuffer.steps import Batch


def split(
    n: int, weights: Sequence[float], credits: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Return how many of n rows each source gives, and the credits for the next batch.

    Each source gives the whole rows of its share. The remaining rows go to the sources with the
    most credit. A credit is the sum of a share's fractions since the source last got a remaining
    row (the largest remainder, carried on). Over many batches each source gives its exact share.

    Args:
        n: Rows of the batch.
        weights: Shares of the sources, which sum to 1; 0 for one that is left out.
        credits: Credits that the previous batch returned; zeros at first.

    Example:
        >>> counts, credits = split(3, [0.5, 0.5], [0.0, 0.0])
        >>> counts, split(3, [0.5, 0.5], credits)[0]
        ([2, 1], [1, 2])
    """
    # Rounded, for 10 x 0.3 must be 3 rows.
    shares = np.round(n * np.asarray(weights, float), 9)
    counts = np.floor(shares).astype(int)
    due = np.asarray(credits, float) + shares - counts
    may_give = np.flatnonzero(np.asarray(weights) > 0)
    n_left = n - int(counts.sum())
    # Rounded, so that equal credits are equal; the first of them goes first.
    order = may_give[np.argsort(-np.round(due[may_give], 9), kind="stable")]
    counts[order[:n_left]] += 1
    due[order[:n_left]] -= 1.0
    n_rows: list[int] = counts.tolist()
    return n_rows, due.tolist()


OnEmpty = Literal["raise", "redistribute"]
ON_EMPTY = get_args(OnEmpty)


def mix(
    sources: Mapping[ReplayBuffer, float],
    *,
    on_empty: OnEmpty = "raise",
    fields: Sequence[str] | None = None,
) -> "Mixture":
    """Return a source of batches that draws from several buffers, in one database or in many.

    Args:
        sources: `{buffer: weight}`; a buffer's share of a batch is proportional to its weight.
        on_empty: Treatment of a buffer from which nothing can be drawn: `raise`, or `redistribute`
            its share to the others by their weights.
        fields: Declared fields to read; all by default. All buffers must declare them alike.

    Raises:
        FieldError: A field differs between two buffers; the message names both.
        ArgumentError: There is no source, a key is not a buffer, a weight is not a number above 0,
            or `on_empty` is unknown.

    Example:
        >>> spec = {"x": "int64"}
        >>> demo = ReplayBuffer("sqlite://", name="demo", fields=spec)
        >>> online = ReplayBuffer("sqlite://", name="online", fields=spec)
        >>> _ = demo.extend({"x": [1, 2]}), online.extend({"x": [10, 20, 30]})
        >>> mix({demo: 0.25, online: 0.75}).sample_arrays(8).info["source"].tolist()
        ['demo', 'demo', 'online', 'online', 'online', 'online', 'online', 'online']
    """
    return Mixture(sources, on_empty=on_empty, fields=fields)


class Mixture:
    """Several buffers that batches are drawn from; `mix` makes it.

    A batch contains each source's share exactly if that is a whole number of rows. The sources give
    the remaining rows in turn, so shares are exact over many batches. The rows are grouped by
    source, in the order of the sources. If a loss depends on the order, shuffle the rows by an
    index. `info["source"]` has the buffer's name for each row, followed by `@database` if two
    buffers have the same name.

    Example:
        >>> demo = ReplayBuffer("sqlite://", name="demo", fields={"obs": "int64"})
        >>> online = ReplayBuffer("sqlite://", name="online", fields={"obs": "int64"})
        >>> for buffer in (demo, online):
        ...     _ = buffer.extend({"obs": [1, 2, 3]}, task_id="t", episode_id="e")
        >>> mixture = mix({demo: 1, online: 1})
        >>> mixture.sample_arrays(4).info["source"].tolist()
        ['demo', 'demo', 'online', 'online']
        >>> mixture.sample_transitions(4).next_obs.shape
        (4,)
        >>> next(iter(mixture.loader("step", 4, seed=1))).n_rows
        4
    """

    def __init__(
        self,
        sources: Mapping[ReplayBuffer, float],
        *,
        on_empty: OnEmpty = "raise",
        fields: Sequence[str] | None = None,
    ) -> None:
        weights = _checked_weights(sources)
        checked_choice(on_empty, "on_empty", ON_EMPTY)
        self._buffers, self._on_empty = list(sources), on_empty
        self.weights = dict(zip(_labels(self._buffers), weights, strict=True))
        self._fields = None if fields is None else checked_names(fields, "fields", "['obs']")
        self._check_fields()
        self._credits = [0.0] * len(weights)

    def sample_arrays(
        self,
        batch_size: int = 256,
        *,
        fields: Sequence[str] | None = None,
        sampler: Sampler | None = None,
        condition: Any = None,
    ) -> Batch:
        """Draw rows as arrays; see `ReplayBuffer.sample_arrays`.

        Raises:
            ArgumentError: The batch size or the sampler is invalid.
            BufferConfigError: A buffer is closed.
            ConditionError: A malformed condition.
            InsufficientDataError: A source has too few rows, or none with `on_empty="raise"`.
            FieldError: A field is unknown.
        """
        options = {"mode": "step", "fields": fields, "condition": condition}
        return self._sample(batch_size, sampler, options)

    def sample_transitions(
        self,
        batch_size: int = 256,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: Mapping[str, int] | None = None,
        terminal_field: str | None = None,
        skip_single: bool = False,
        relabel: HindsightGoals | None = None,
        fields: Sequence[str] | None = None,
        sampler: Sampler | None = None,
        condition: Any = None,
    ) -> Batch:
        """Draw transitions; arguments are those of `ReplayBuffer.sample_transitions`.

        Raises:
            ArgumentError: The batch size, the sampler, `n_step` or `gamma` is invalid.
            BufferConfigError: A buffer is closed.
            ConditionError: A malformed condition.
            InsufficientDataError: A source has too few, or none with `on_empty="raise"`.
            FieldError: An unknown field, or no observation field.
        """
        options = {
            "n_step": n_step,
            "gamma": gamma,
            "stack": stack,
            "terminal_field": terminal_field,
            "skip_single": skip_single,
            "relabel": relabel,
            "fields": fields,
            "condition": condition,
        }
        return self._sample(batch_size, sampler, options)

    @overload
    def loader(
        self,
        mode: Mode = "transition",
        batch_size: int = 256,
        *,
        to_named_tuple: None = None,
        **options: Unpack[LoaderSettings],
    ) -> Loader[Batch]: ...
    @overload
    def loader(
        self,
        mode: Mode = "transition",
        batch_size: int = 256,
        *,
        to_named_tuple: Sequence[str],
        **options: Unpack[LoaderSettings],
    ) -> Loader[Any]: ...
    def loader(
        self, mode: Mode = "transition", batch_size: int = 256, **options: Any
    ) -> Loader[Any]:
        """Return an iterable of batches without end; arguments are those of `ReplayBuffer.loader`.

        Each source has its own random numbers, derived from the seed.

        Raises:
            ArgumentError: An argument is invalid, or the mode does not take an option; or passes
                (`epochs`, `shuffle=False`), because sources would end at different times.
            ConditionError: A malformed condition.
            FieldError: A field is unknown, or names collide.
            MissingExtraError: A device is given, and torch is not installed.
        """
        names = ("fieldname_map", "to_named_tuple", "device")
        output = Output(*(options.pop(name, None) for name in names))
        prefetch = options.pop("prefetch", 0)
        settings = self._options({"mode": mode, "batch_size": batch_size, **options})
        if not settings.is_drawn:
            raise ArgumentError(
                "a mixture is drawn without end: leave out epochs and shuffle=False, or make a "
                "loader of each buffer"
            )
        draw = self._draw(settings)
        first_identity = settings.identity(draw.sources[0].node)
        identity = {"mixture": self.weights, "on_empty": self._on_empty, **first_identity}
        plan = _MixedDraws(draw, int(batch_size), settings.sampler, settings.replace)
        seed, rank = settings.seed, settings.rank
        return Loader(plan, identity, seed=seed, output=output, prefetch=prefetch, rank=rank)

    def __repr__(self) -> str:
        return f"Mixture({self.weights})"

    def _sample(self, batch_size: int, sampler: Sampler | None, options: dict[str, Any]) -> Batch:
        n = checked_integer(batch_size, "batch_size", 1)
        draw = self._draw(self._options({**options, "sampler": sampler}))
        uniform = RandomSampler(replace=True)
        samplers = [uniform if sampler is None else sampler] * len(self._buffers)
        batch, self._credits = draw(samplers, n, None, self._credits)
        return batch

    def _options(self, options: dict[str, Any]) -> LoaderOptions:
        if options.get("fields") is None:
            options = {**options, "fields": self._fields}
        return options_of(options)

    def _draw(self, options: LoaderOptions) -> "_MixedSource":
        sources = [buffer.batch_source(options) for buffer in self._buffers]
        return _MixedSource(sources, self.weights, redistributes=self._on_empty == "redistribute")

    def _check_fields(self) -> None:
        (first, label), *others = zip(self._buffers, self.weights, strict=True)
        names = self._fields
        first.batch_source(LoaderOptions(mode="step", fields=names))  # or it raises the right error
        for other, other_label in others:
            every = {**first.fields, **other.fields} if names is None else names
            for name in every:
                ours, theirs = _declared(first, name), _declared(other, name)
                if ours != theirs:
                    raise FieldError(
                        f"field {name!r} is {ours} in {label} and {theirs} in {other_label}; name "
                        f"the fields that all have, with mix(..., fields=[...])"
                    )


@dataclass(frozen=True)
class _MixedSource:
    """Sources of one kind of batches, and their shares."""

    sources: Sequence[BatchSource]
    weights: Mapping[str, float]
    redistributes: bool

    def __call__(
        self,
        samplers: Sequence[Sampler],
        n: int,
        path: Sequence[int] | None,
        credits: Sequence[float],
    ) -> tuple[Batch, list[float]]:
        """Return a batch of n rows, and the credits for the next one.

        Args:
            samplers: A sampler for each source.
            n: Number of rows.
            path: Start of the random numbers of seeded samplers; None: they continue where they
                are.
            credits: Credits that the previous batch returned; zeros at first.
        """
        weights = list(self.weights.values())
        while True:
            counts, behind = split(n, _normalised(weights), credits)
            batches = self._draw_each(samplers, counts, path)
            if all(batch.n_rows == n for batch, n in zip(batches, counts, strict=True)):
                samplers[0].handed_out()  # the others are it, or copies
                return joined(batches, list(self.weights)), behind
            self._give_back(batches, counts)
            empty = [i for i, batch in enumerate(batches) if counts[i] and not batch.n_rows]
            if not (empty and self.redistributes):
                self._check_full(batches, counts)
            for i in empty:
                weights[i] = 0.0
            if not any(weights):
                raise InsufficientDataError(self._nothing_to_draw())

    def _draw_each(
        self, samplers: Sequence[Sampler], counts: Sequence[int], path: Sequence[int] | None
    ) -> list[Batch]:
        batches: list[Batch] = []
        try:
            for i, (source, sampler) in enumerate(zip(self.sources, samplers, strict=True)):
                own_path = None if path is None else (*path, i)
                batches.append(source.draw(sampler, counts[i], own_path))
        except BaseException:
            with suppress(SQLBufferError):  # the first error is what matters
                self._give_back(batches, counts)
            raise
        return batches

    def _give_back(self, batches: Sequence[Batch], counts: Sequence[int]) -> None:
        for source, batch, n_asked in zip(self.sources, batches, counts, strict=False):
            if batch.n_rows == n_asked:  # fewer were not counted
                source.give_back(batch)

    def _check_full(self, batches: Sequence[Batch], counts: Sequence[int]) -> None:
        for i, (label, batch) in enumerate(zip(self.weights, batches, strict=True)):
            if batch.n_rows < counts[i]:
                of = self.sources[i].shortage()
                raise InsufficientDataError(
                    f"{label}: asked for {counts[i]}, and {batch.n_rows} match{of.reason}; wait "
                    f"for more data, lower the batch size or its weight, or, where a source may be "
                    f"empty, mix(..., on_empty='redistribute'){of.causes}"
                )

    def _nothing_to_draw(self) -> str:
        parts = [f"none of {', '.join(self.weights)} has anything to draw; wait for data"]
        for label, source in zip(self.weights, self.sources, strict=True):
            of = source.shortage()
            if text := of.reason or of.causes:
                parts.append(f"{label}: {text[2:]}")
        return "; ".join(parts)


@dataclass(frozen=True)
class _MixedDraws:
    """Batches drawn from several sources, without end."""

    draw: _MixedSource
    batch_size: int
    sampler: Sampler | None
    replace: bool

    def batches(self, run: LoaderRun, progress: Progress) -> Iterator[tuple[Batch, Progress]]:
        """Yield the batches."""
        n_sources = len(self.draw.sources)
        samplers = [
            own_sampler(self.sampler, self.replace, run.seed, progress) for _ in range(n_sources)
        ]
        credits = progress.get("credits", [0.0] * n_sources)
        for number in count(progress.get("batch", 0)):
            path = (*run.path, number)
            batch, credits = self.draw(samplers, self.batch_size, path, credits)
            behind = sampler_progress(self.sampler, samplers[0])
            yield batch, {"batch": number + 1, "credits": credits, **behind}

    def begin(self, run: LoaderRun) -> Progress:
        """Return the progress before the first batch."""
        sampler = own_sampler(self.sampler, self.replace, run.seed)
        credits = [0.0] * len(self.draw.sources)
        return {"batch": 0, "credits": credits, **sampler_progress(self.sampler, sampler)}

    def knows(self, progress: Progress) -> bool:
        """Return True if a value is the progress of these draws."""
        if not progress:
            return True
        credits = progress.get("credits")
        return (
            set(progress) - {"sampler"} == {"batch", "credits"}
            and is_count(progress["batch"])
            and isinstance(credits, list)
            and len(credits) == len(self.draw.sources)
            and all(isinstance(credit, float) and math.isfinite(credit) for credit in credits)
            and knows_sampler(self.sampler, progress)
        )

    def n_batches(self) -> int | None:
        """Return None: draws have no end."""
        return None


def _declared(buffer: ReplayBuffer, name: str) -> str:
    spec = buffer.fields.get(name)
    if spec is None:
        return "not declared"
    return f"{spec}, observed" if name in buffer.observation_fields else str(spec)


def _checked_weights(sources: Any) -> list[float]:
    example = "{buffer: weight}, with one buffer or more"
    weights = []
    for buffer, weight in checked_dict(sources, "sources", example).items():
        checked_buffer(buffer, "each key of sources")
        name = f"the weight of {buffer.name!r} in sources"
        weights.append(checked_number(weight, name, above=0.0, more="; leave an unused buffer out"))
    if not weights:
        raise refused(sources, "sources", f"a dict such as {example}")
    return _normalised(weights)


def _normalised(weights: Sequence[float]) -> list[float]:
    greatest = max(weights)  # or the sum of large ones would be infinite
    total = math.fsum(weight / greatest for weight in weights)
    return [weight / greatest / total for weight in weights]


def _labels(buffers: Sequence[ReplayBuffer]) -> list[str]:
    names = [buffer.name for buffer in buffers]
    labels = [
        f"{buffer.name}@{buffer.url}" if names.count(buffer.name) > 1 else buffer.name
        for buffer in buffers
    ]
    # Databases in memory have one name.
    return [f"{label}#{i}" if labels.count(label) > 1 else label for i, label in enumerate(labels)]
