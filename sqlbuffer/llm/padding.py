"""Rollouts as the padded arrays that a trainer's loss takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import (
    checked_choice,
    checked_count,
    checked_integer,
    checked_iterable,
    refused,
)
from sqlbuffer.errors import ArgumentError
from sqlbuffer.llm.advantages import Baseline, Scale, group_advantages
from sqlbuffer.llm.tokens import NO_VERSION, Rollout, TokenSequence
from sqlbuffer.steps import Batch, check_device

Truncation = Literal["error", "left", "right", "drop"]
Side = Literal["left", "right"]


class TokenBatch(Batch):
    """Sequences of tokens as arrays; `padded` makes it.

    Attributes:
        n_cut: Number of sequences that were cut to `max_length`.
        n_dropped: Number of sequences that were left out, as longer than `max_length`.
        n_lost: Number of sampled tokens that were cut or left out with their sequences, or became
            the first one, which no token predicts.
        n_left_out: Number of turns that have no tokens, beside others that have some.
        n_stale: Number of sampled tokens that `max_token_staleness` has masked.
        info: Origin of each sequence: `task_id`, `group_id`, `episode_id`, `agent_id` (of its first
            turn) as objects, `n_cut` (tokens that were cut, int64) and `is_made` (a tokenizer made
            ids of it, bool); all of shape (n,).

    Example:
        >>> import numpy as np
        >>> TokenBatch({"input_ids": np.zeros((0, 0), np.int64)}, {}, n_dropped=2).n_dropped
        2
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        info: Mapping[str, NDArray[Any]],
        *,
        n_cut: int = 0,
        n_dropped: int = 0,
        n_lost: int = 0,
        n_left_out: int = 0,
        n_stale: int = 0,
    ) -> None:
        super().__init__(arrays, info)
        self.n_cut, self.n_dropped, self.n_lost = n_cut, n_dropped, n_lost
        self.n_left_out, self.n_stale = n_left_out, n_stale

    def _counts(self) -> dict[str, int]:
        names = ("n_cut", "n_dropped", "n_lost", "n_left_out", "n_stale")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        counts = "".join(f", {name}={n}" for name, n in self._counts().items() if n)
        return f"Token{super().__repr__()[:-1]}{counts})"

    def to(self, device: Any) -> "TokenBatch":
        """Return the batch with its arrays as tensors; see `Batch.to`."""
        return TokenBatch(super().to(device), self.info, **self._counts())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **self._counts()}


@dataclass(frozen=True)
class _Placed:
    """A sequence, the number of its rollout, and how many of its tokens were cut."""

    sequence: TokenSequence
    rollout: int
    n_cut: int = 0


def padded(
    rollouts: Sequence[Rollout],
    max_length: int | None = None,
    truncation: Truncation = "error",
    padding_side: Side = "right",
    pad_token_id: int = 0,
    device: Any = None,
    *,
    baseline: Baseline = "mean",
    scale: Scale | None = "std",
    max_token_staleness: int | None = None,
    current_version: int | None = None,
) -> TokenBatch:
    """Return the sequences of rollouts as arrays of n sequences, padded to the longest one.

    Args:
        rollouts: The rollouts, as `rollouts` or a batch returns them. Advantages compare those that
            have the same `group`, also where sequences are left out.
        max_length: Most tokens of a sequence; None for no limit.
        truncation: What becomes of a longer sequence: an error; `left` or `right` cut tokens at
            that end; `drop` leaves it out.
        padding_side: Where shorter sequences are padded.
        pad_token_id: Token of the padding.
        device: Device of torch tensors, such as `cuda`; None returns numpy arrays.
        baseline: See `group_advantages`.
        scale: See `group_advantages`.
        max_token_staleness: Most versions that a sampled token may be behind `current_version`;
            older ones are masked. Tokens without a version are never stale.
        current_version: Version of the model that is trained, such as `buffer.clock`.

    Returns:
        A batch of n sequences of up to L tokens:

        - `input_ids`, `attention_mask` and `position_ids`, int64 of shape (n, L)
        - `loss_mask`, bool of shape (n, L): tokens that were sampled and count in a loss
        - `logprobs`, float32 of shape (n, L): of token i at place i when it was sampled; 0 where it
          is masked, NaN where none was stored
        - `versions`, int64 of shape (n, L): of the model that sampled the token; -1 for others
        - `reward` and `advantage`, float32 of shape (n,): those of its rollout; NaN without one
        - `rollout` and `group`, int64 of shape (n,): place in `rollouts`, and `Rollout.group`

    Raises:
        ArgumentError: An option is invalid, or a sequence is longer than `max_length`.
        FieldError: See `Rollout.sequences`.
        MissingExtraError: `device` is given, and torch is not installed.

    Example:
        >>> from sqlbuffer import DataRow, Experience, ExpMeta
        >>> from sqlbuffer.llm import rollouts
        >>> rows = [
        ...     DataRow(
        ...         ExpMeta("sums"), Experience(reward_t=reward),
        ...         fields={"prompt_ids": [5, 6], "completion_ids": said},
        ...     )
        ...     for reward, said in ((1.0, [7]), (0.0, [8, 9]))
        ... ]
        >>> batch = padded(rollouts([rows]))
        >>> batch.input_ids.tolist(), batch.loss_mask.sum(1).tolist()
        ([[5, 6, 7, 0], [5, 6, 8, 9]], [1, 2])
        >>> batch.advantage.round(2).tolist()
        [0.7099999785423279, -0.7099999785423279]
    """
    checked_choice(truncation, "truncation", get_args(Truncation))
    checked_choice(padding_side, "padding_side", get_args(Side))
    pad_token_id = checked_integer(pad_token_id, "pad_token_id", 0)
    if max_length is not None:
        max_length = checked_integer(max_length, "max_length", 1)
    if current_version is not None:
        current_version = checked_integer(current_version, "current_version")
    if device is not None:
        check_device(device)
    rollouts = _checked(rollouts)
    if max_token_staleness is not None:
        max_token_staleness = checked_count(max_token_staleness, "max_token_staleness")
        if current_version is None:
            raise ArgumentError(
                "max_token_staleness counts from current_version: give the version of the model "
                "that is trained, such as current_version=buffer.clock"
            )
    rewards = np.array([_reward(rollout) for rollout in rollouts], np.float64)
    groups = np.array([rollout.group for rollout in rollouts], np.int64)
    advantages = group_advantages(rewards, groups, baseline, scale)
    placed = [
        _Placed(sequence, number)
        for number, rollout in enumerate(rollouts)
        for sequence in rollout.sequences
    ]
    fitting = _fitting(placed, max_length, truncation, rollouts)
    n_stale = 0
    if max_token_staleness is not None and current_version is not None:
        fitting, n_stale = _unless_stale(fitting, current_version - max_token_staleness)
    of_rollout = np.array([each.rollout for each in fitting], np.int64)
    arrays = {
        **_token_arrays([each.sequence for each in fitting], padding_side == "left", pad_token_id),
        "reward": rewards[of_rollout].astype(np.float32),
        "advantage": advantages[of_rollout].astype(np.float32),
        "rollout": of_rollout,
        "group": groups[of_rollout],
    }
    batch = TokenBatch(
        arrays,
        _info(fitting, rollouts),
        n_cut=sum(each.n_cut > 0 for each in fitting),
        n_dropped=len(placed) - len(fitting),
        n_lost=_n_sampled(placed) - _n_sampled(fitting) - n_stale,
        n_left_out=sum(map(_n_without_tokens, rollouts)),
        n_stale=n_stale,
    )
    return batch if device is None else batch.to(device)


def _checked(rollouts: Any) -> list[Rollout]:
    what = "a list of rollouts, as batch.rollouts() returns it"
    listed = list(checked_iterable(rollouts, "rollouts", what))
    if not all(isinstance(rollout, Rollout) for rollout in listed):
        raise refused(rollouts, "rollouts", what)
    return listed


def _reward(rollout: Rollout) -> float:
    reward = rollout.reward
    return reward if reward is not None and np.isfinite(reward) else np.nan


def _n_sampled(placed: Sequence[_Placed]) -> int:
    return sum(each.sequence.n_sampled for each in placed)


def _n_without_tokens(rollout: Rollout) -> int:
    return len(rollout.turns) - len({place for each in rollout.sequences for place in each.turns})


def _fitting(
    placed: Sequence[_Placed],
    max_length: int | None,
    truncation: Truncation,
    rollouts: Sequence[Rollout],
) -> list[_Placed]:
    """Return the sequences that stay, with at most so many tokens."""
    fitting = []
    for each in placed:
        n_over = 0 if max_length is None else len(each.sequence) - max_length
        if n_over <= 0:
            fitting.append(each)
        elif truncation == "error":
            rollout = rollouts[each.rollout]
            raise ArgumentError(
                f"task {rollout.task_id!r}, episode {rollout.episode_id!r}: a sequence of "
                f"{len(each.sequence)} tokens is longer than max_length={max_length}; give "
                f"truncation='left', 'right' or 'drop', or a larger max_length"
            )
        elif truncation != "drop":
            part = slice(n_over, None) if truncation == "left" else slice(0, max_length)
            cut = _part(each.sequence, part)
            if truncation == "left":  # what came before the first token was cut
                cut = _masked(cut, np.arange(len(cut)) > 0)
            fitting.append(replace(each, sequence=cut, n_cut=n_over))
    return fitting


def _masked(sequence: TokenSequence, keeps: NDArray[np.bool_]) -> TokenSequence:
    """Return a sequence in which only some tokens count."""
    return replace(
        sequence,
        loss_mask=sequence.loss_mask & keeps,
        logprobs=np.where(keeps, sequence.logprobs, np.float32(0)),
        versions=np.where(keeps, sequence.versions, NO_VERSION),
    )


def _part(sequence: TokenSequence, part: slice) -> TokenSequence:
    return replace(
        sequence, ids=sequence.ids[part], loss_mask=sequence.loss_mask[part],
        logprobs=sequence.logprobs[part], versions=sequence.versions[part],
    )  # fmt: skip


def _unless_stale(placed: Sequence[_Placed], oldest: int) -> tuple[list[_Placed], int]:
    """Return the sequences with tokens of older versions masked, and how many these are."""
    fresh, n_stale = [], 0
    for each in placed:
        sequence = each.sequence
        is_stale = (sequence.versions != NO_VERSION) & (sequence.versions < oldest)
        n_stale += int(is_stale.sum())
        fresh.append(replace(each, sequence=_masked(sequence, ~is_stale)))
    return fresh, n_stale


def _token_arrays(
    sequences: Sequence[TokenSequence], is_left: bool, pad_token_id: int
) -> dict[str, NDArray[Any]]:
    n, longest = len(sequences), max(map(len, sequences), default=0)
    arrays = {
        "input_ids": np.full((n, longest), pad_token_id, np.int64),
        "attention_mask": np.zeros((n, longest), np.int64),
        "position_ids": np.zeros((n, longest), np.int64),
        "loss_mask": np.zeros((n, longest), np.bool_),
        "logprobs": np.zeros((n, longest), np.float32),
        "versions": np.full((n, longest), NO_VERSION, np.int64),
    }
    for i, sequence in enumerate(sequences):
        size = len(sequence)
        part = slice(longest - size, longest) if is_left else slice(0, size)
        for name, values in (
            ("input_ids", sequence.ids), ("attention_mask", 1), ("position_ids", np.arange(size)),
            ("loss_mask", sequence.loss_mask), ("logprobs", sequence.logprobs),
            ("versions", sequence.versions),
        ):  # fmt: skip
            arrays[name][i, part] = values
    return arrays


def _info(placed: Sequence[_Placed], rollouts: Sequence[Rollout]) -> dict[str, NDArray[Any]]:
    origins: dict[str, list[Any]] = {
        name: [getattr(rollouts[each.rollout], name) for each in placed]
        for name in ("task_id", "group_id", "episode_id")
    }
    origins["agent_id"] = [
        rollouts[each.rollout].turns[each.sequence.turns[0]].exp_meta.agent_id for each in placed
    ]
    return {
        **{name: np.array(values, object) for name, values in origins.items()},
        "n_cut": np.array([each.n_cut for each in placed], np.int64),
        "is_made": np.array([each.sequence.is_made for each in placed], np.bool_),
    }
