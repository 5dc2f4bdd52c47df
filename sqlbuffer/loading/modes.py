"""The mode and the options of a loader, checked."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as options_in
from typing import Any, Literal, TypedDict

import numpy as np

from sqlbuffer.arguments import Condition, check_n_step, checked_batch_size, checked_sampler
from sqlbuffer.batches.forms import Form, StepForm, TrajectoryForm, TransitionForm, WindowForm
from sqlbuffer.batches.hindsight import HindsightGoals
from sqlbuffer.checks import checked_choice, checked_flag, checked_integer
from sqlbuffer.display import shown
from sqlbuffer.errors import ArgumentError, BufferConfigError
from sqlbuffer.fields import Fields
from sqlbuffer.loading.plans import BatchSource
from sqlbuffer.loading.ranks import Rank, Shard, rank_of
from sqlbuffer.query.tree import EVERYTHING, Node, check
from sqlbuffer.samplers import Sampler, checked_seed
from sqlbuffer.storage.store import BufferStore

Mode = Literal["step", "transition", "n_step", "window", "trajectory"]
# The options that not every mode takes.
TAKES: dict[str, tuple[str, ...]] = {
    "step": (),
    "transition": ("n_step", "gamma", "stack", "terminal_field", "skip_single", "relabel"),
    "n_step": ("n_step", "gamma", "sequence_fields", "stack", "terminal_field", "skip_single"),
    "window": ("length", "burn_in", "stride", "stack"),
    "trajectory": ("include_partial",),
}
_OF_MODES = tuple(dict.fromkeys(name for names in TAKES.values() for name in names))
# Types of values that may equal a default; others are not compared.
_OF_DEFAULTS = (bool, int, float, tuple, np.generic, type(None))
# Options that do not decide which rows a batch contains.
_FREE = ("gamma", "sequence_fields", "fields", "seed", "epochs", "sampler", "condition", "shard")


class LoaderSettings(TypedDict, total=False):
    """Named options of `ReplayBuffer.loader`, without `to_named_tuple` and `mirror`."""

    n_step: int
    gamma: float
    length: int | None
    burn_in: int
    stride: int
    sequence_fields: Sequence[str]
    stack: Mapping[str, int] | None
    terminal_field: str | None
    skip_single: bool
    relabel: HindsightGoals | None
    include_partial: bool
    shuffle: bool
    seed: int | None
    drop_last: bool
    replace: bool
    sampler: Sampler | None
    condition: Condition
    fields: Sequence[str] | None
    fieldname_map: Mapping[str, str] | None
    device: Any
    prefetch: int
    epochs: int | None
    shard: Shard
    even: bool


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options of `ReplayBuffer.loader` that decide which batches are made, not how they are handed
    out.
    """

    mode: Mode = "transition"
    batch_size: int = 256
    n_step: int = 1
    gamma: float = 0.99
    length: int | None = None
    burn_in: int = 0
    stride: int = 1
    sequence_fields: Sequence[str] = ()
    stack: Mapping[str, int] | None = None
    terminal_field: str | None = None
    skip_single: bool = False
    relabel: HindsightGoals | None = None
    include_partial: bool = False
    shuffle: bool = True
    seed: int | None = None
    drop_last: bool = False
    replace: bool = False
    sampler: Sampler | None = None
    condition: Condition = None
    fields: Sequence[str] | None = None
    epochs: int | None = None
    shard: Shard = None
    even: bool = False

    def __post_init__(self) -> None:
        _check_mode(self)
        for name in ("include_partial", "skip_single", "shuffle", "drop_last", "replace", "even"):
            checked_flag(getattr(self, name), name)
        checked_integer(self.batch_size, "batch_size", 1)
        checked_batch_size(self.batch_size, self.sampler, replace=bool(self.replace))
        check_n_step(self.n_step, self.gamma)
        checked_seed(self.seed)
        if self.epochs is not None:
            checked_integer(self.epochs, "epochs", 1, more=", or None")
        _check_order(self)
        if self.even and self.shard is None:
            raise ArgumentError("even=True goes with shard=(rank, world)")
        rank_of(self.shard)

    @property
    def rank(self) -> Rank | None:
        """The rank that reads, if several divide the batches."""
        return rank_of(self.shard)

    @property
    def is_drawn(self) -> bool:
        """Whether a sampler draws the batches; else they come in passes."""
        return self.epochs is None and self.shuffle

    def source(self, store: BufferStore) -> BatchSource:
        """Return the reader of the mode's batches."""
        config = store.info.config
        if not self.is_drawn:
            check_drawn(store.info.name, config.sampling.max_use, "a pass")
        node = check(self.condition, config.fields.comparable)
        return BatchSource(store, node, self.form(config.fields))

    def form(self, fields: Fields) -> Form:
        """Return the form of the mode's batches.

        Args:
            fields: The fields that there are.

        Raises:
            FieldError: Another one is named.
            ValueError: An option is invalid.
        """
        if self.mode == "step":
            return StepForm.of(fields, self.fields)
        if self.mode == "trajectory":
            partial = bool(self.include_partial)
            return TrajectoryForm.of(fields, names=self.fields, include_partial=partial)
        if self.mode == "window":
            length: Any = self.length  # None is refused with the rest
            return WindowForm.of(
                fields, length, self.burn_in, self.stride, names=self.fields, stack=self.stack
            )
        return TransitionForm.of(
            fields,
            int(self.n_step),
            float(self.gamma),
            names=self.fields,
            stack=self.stack,
            terminal_field=self.terminal_field,
            sequence_fields=self.sequence_fields,
            skip_single=bool(self.skip_single),
            relabel=self.relabel,
        )

    def identity(self, node: Node) -> dict[str, Any]:
        """Return the options that decide, with the seed, which rows each batch contains; as JSON.

        Args:
            node: The condition, checked.
        """
        identity = {
            option.name: getattr(self, option.name)
            for option in options_in(self)
            if option.name not in _FREE
        }
        identity["stack"] = (
            None if not self.stack else sorted([k, int(v)] for k, v in self.stack.items())
        )
        goals = self.relabel
        identity["relabel"] = (
            None
            if goals is None
            else [
                int(goals.n_sampled_goal),
                goals.strategy,
                goals.achieved_goal,
                goals.desired_goal,
            ]
        )
        identity["passes"] = (
            "" if self.is_drawn else "endless" if self.epochs is None else "counted"
        )
        identity["world"] = None if self.rank is None else self.rank.world
        identity["sampler"] = None if self.sampler is None else type(self.sampler).__name__
        identity["condition"] = (
            None if node == EVERYTHING else hashlib.sha256(repr(node).encode()).hexdigest()[:16]
        )
        return {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in identity.items()
        }


def check_drawn(name: str, max_use: int | None, what: str) -> None:
    """Raise if the buffer limits the uses of a row, because each draw counts as a use.

    Raises:
        BufferConfigError: The buffer has `max_use`.
    """
    if max_use is not None:
        raise BufferConfigError(
            f"buffer {name!r} has max_use={max_use}: only draws count uses, and {what} would read "
            f"its rows without a count; use loader() without epochs and shuffle=False"
        )


def _check_mode(options: LoaderOptions) -> None:
    checked_choice(options.mode, "mode", TAKES)
    for option in options_in(options):
        name, value = option.name, getattr(options, option.name)
        if name not in _OF_MODES or name in TAKES[options.mode]:
            continue
        value = tuple(value) if isinstance(value, list) else value
        if not isinstance(value, _OF_DEFAULTS) or value != option.default:
            takers = " and ".join(mode for mode, names in TAKES.items() if name in names)
            raise ArgumentError(
                f"mode {options.mode!r} takes no {name}, got {name}={shown(value)}; it goes with "
                f"{takers}"
            )


def _check_order(options: LoaderOptions) -> None:
    """Raise if the options name two sources of the order of rows."""
    sampler = options.sampler
    if sampler is not None:
        checked_sampler(sampler)
    how = "epochs" if options.epochs is not None else "shuffle=False"
    if not options.is_drawn and (sampler is not None or options.replace):
        option = "a sampler" if sampler is not None else "replace=True"
        raise ArgumentError(f"{how} visits each row once, in its own order; leave out {option}")
    if sampler is not None and (options.replace or options.seed is not None):
        option = "replace" if options.replace else "seed"
        raise ArgumentError(f"a sampler is given: give {option} to it, not to the loader")


def options_of(options: Mapping[str, Any]) -> LoaderOptions:
    """Return options given by name.

    Raises:
        ArgumentError: An unknown one.
    """
    known = [field.name for field in options_in(LoaderOptions)]
    for name in options:
        if name not in known:
            raise ArgumentError(
                f"there is no option {shown(name)} here; there are {', '.join(known)}"
            )
    return LoaderOptions(**options)
