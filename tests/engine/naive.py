"""A buffer in plain Python: a list of steps, and what batches are made of them.

It is slow and short on purpose: each sentence of docs/how-to/draw-transitions.md, stack-frames.md
and load-batches.md is a line or two here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Item = dict[str, Any]


@dataclass
class Episode:
    """An episode: how it ended, and what came after its last step."""

    task: str
    key: str
    status: str = "open"
    length: int = 0
    final: dict[str, Any] | None = None
    reward: float | None = None
    rewards: list[float | None] = field(default_factory=list)

    @property
    def ended_length(self) -> int:
        return -1 if self.status == "open" else self.length

    @property
    def total(self) -> float:
        """The return, with the steps that have left, but for those that were deleted before the
        end; NaN while the episode is open.
        """
        given = [reward for reward in self.rewards if reward is not None]
        return sum(given) if given and self.status != "open" else np.nan


@dataclass
class Step:
    """A step, by the number that its user gave it in the field or key `uid`."""

    uid: int
    task: str
    agent: str
    step: int
    fields: dict[str, Any]
    reward: float | None = None
    adv_t: float | None = None
    v_t: float | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    episode: Episode | None = None
    t: int = -1
    version: int | None = None
    extra: dict[str, Any] | None = None
    is_quarantined: bool = False


@dataclass
class NaiveBuffer:
    """The steps that a buffer holds, and the limits on what may be drawn.

    Attributes:
        fields: The declared fields: `{name: (dtype, shape)}`; -1 in a shape varies.
        observations: Names of those that an observation consists of.
        steps: The steps by uid, in the order in which they were stored.
        max_staleness: See `ReplayBuffer`.
        clock: The buffer's clock.
        asks: Batches are asked for advantages and values.
    """

    fields: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    observations: tuple[str, ...]
    steps: dict[int, Step] = field(default_factory=dict)
    max_staleness: int | None = None
    clock: int | None = None
    asks: bool = False

    @property
    def has_next(self) -> bool:
        return all(f"next_{name}" in self.fields for name in self.observations)

    def may_be_drawn(self, step: Step) -> bool:
        oldest = None
        if self.clock is not None and self.max_staleness is not None:
            oldest = self.clock - self.max_staleness
        is_stale = oldest is not None and step.version is not None and step.version < oldest
        return not step.is_quarantined and not is_stale

    def places(self) -> dict[tuple[int, int], Step]:
        return {(id(s.episode), s.t): s for s in self.steps.values() if s.episode is not None}

    def items(
        self, make: Callable[[Step], Item | None], matches: Callable[[Step], bool]
    ) -> dict[int, Item]:
        """Return each item that can be made, by the uid of its key."""
        self._places = self.places()
        made = {}
        for uid, step in self.steps.items():
            if self.may_be_drawn(step) and matches(step):
                item = make(step)
                if item is not None and not self.asks:
                    item = {k: v for k, v in item.items() if k not in ("adv_t", "v_t")}
                if item is not None:
                    made[uid] = item
        return made

    def at(self, step: Step, offset: int) -> Step | None:
        if step.episode is None:
            return step if offset == 0 else None
        return self._places.get((id(step.episode), step.t + offset))

    def frames(self, step: Step, last: int, k: int) -> list[Step | None]:
        """Return the k steps up to an offset, the first one of the episode again and again."""
        t = max(step.t, 0)
        return [self.at(step, max(t + last - i, 0) - t) for i in range(k - 1, -1, -1)]

    # What batches have.

    def single(self, step: Step) -> Item:
        return {**step.fields, **built_in(step), **keys_of(step)}

    def transition(  # noqa: C901  # the rules in the order of the documentation
        self,
        step: Step,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: Mapping[str, int] | None = None,
        terminal_field: str | None = None,
        sequence_fields: tuple[str, ...] = (),
    ) -> Item | None:
        stack, has_next = stack or {}, self.has_next
        if step.episode is None and not has_next:
            return None
        if step.episode is not None and step.episode.status == "aborted":
            return None
        chain: list[Step] = []
        terminated = ended = False
        for k in range(n_step):
            one = self.at(step, k)
            if one is None:
                return None
            chain.append(one)
            terminated = bool(one.terminated)
            if terminal_field is not None:
                terminated |= bool(one.fields[terminal_field])
            is_last = one.episode is None or one.t + 1 == one.episode.ended_length
            ended = terminated or bool(one.truncated) or is_last
            if ended:
                break
        m, needed = len(chain), list(chain)
        final = step.episode.final if step.episode is not None else None
        is_final = bool(
            not has_next and ended and final is not None and step.episode
            and step.t + m == step.episode.length
        )  # fmt: skip
        is_zero = not has_next and terminated and not is_final
        after = None if has_next or ended else self.at(step, n_step)
        if not (has_next or is_final or is_zero or after is not None):
            return None
        longest = max(stack.values(), default=1)
        frames = self.frames(step, 0, longest)
        before = [] if longest == 1 else self.frames(step, m, longest)[:-1]
        if any(one is None for one in frames) or (not is_zero and any(b is None for b in before)):
            return None
        needed += [one for one in (after, *frames, *([] if is_zero else before)) if one is not None]
        if not all(map(self.may_be_drawn, needed)):
            return None
        item: Item = {}
        following = [f"next_{name}" for name in self.observations]
        for name, value in step.fields.items():
            if name in stack:
                own = frames[longest - stack[name] :]
                item[name] = np.stack([one.fields[name] for one in own if one is not None])
            elif name not in following:
                item[name] = value
        with np.errstate(over="ignore"):
            rewards = [np.nan if one.reward is None else one.reward for one in chain]
            item["reward"] = np.float32(sum(r * gamma**k for k, r in enumerate(rewards)))
            item["discount"] = np.float32(0.0 if terminated else gamma**m)
        item["terminated"] = np.bool_(terminated)
        item |= {name: built_in(step)[name] for name in ("adv_t", "v_t")}
        for name in self.observations:
            item[f"next_{name}"] = self._after(chain, after, final if is_final else None, name)
            k = stack.get(name)
            if k is not None:
                zero = self.zeros(name)
                older = [zero if is_zero or b is None else b.fields[name] for b in before]
                frames_after = [*older[len(older) + 1 - k :], item[f"next_{name}"]]
                item[f"next_{name}"] = np.stack(frames_after)
        for name in sequence_fields:
            values = [
                built_in(one)[name] if name in ("reward", "adv_t") else one.fields[name]
                for one in chain
            ]
            varies = name in self.fields and -1 in self.fields[name][1]
            zero = self.zeros(name) if varies else np.zeros_like(values[0])
            values += [zero] * (n_step - m)
            item[f"seq_{name}"] = values if varies else np.stack(values)
        place = {"episode": step.episode and step.episode.key, "t": step.t, "n_steps": m}
        return {**item, **keys_of(step), **{f"info.{name}": v for name, v in place.items()}}

    def _after(
        self, chain: list[Step], after: Step | None, final: Mapping[str, Any] | None, name: str
    ) -> Any:
        if self.has_next:
            return chain[-1].fields[f"next_{name}"]
        if final is not None:
            return final[name]
        if after is not None:
            return after.fields[name]
        return self.zeros(name)

    def zeros(self, name: str) -> Any:
        """Return a field of a missing step; one of varying length has no items."""
        dtype, shape = self.fields[name]
        return np.zeros([0 if n == -1 else n for n in shape], dtype)[()]

    def window(  # noqa: C901  # the rules in the order of the documentation
        self,
        step: Step,
        length: int,
        burn_in: int = 0,
        stride: int = 1,
        stack: Mapping[str, int] | None = None,
    ) -> Item | None:
        stack = stack or {}
        longest = max(stack.values(), default=1)
        episode = step.episode
        if episode is None or episode.status == "aborted" or step.t % stride:
            return None
        members: list[Step | None] = []
        for k in range(length):
            one = self.at(step, k)
            if one is None or None in self.frames(step, k, longest):
                return None
            members.append(one)
            if one.terminated or one.truncated or one.t + 1 == episode.ended_length:
                break
        members += [None] * (length - len(members))
        warm: list[Step | None] = []
        for k in range(1, burn_in + 1):
            one = self.at(step, -k)
            if one is None or None in self.frames(step, -k, longest):
                break
            if one.terminated or one.truncated or one.t + 1 == episode.ended_length:
                break
            warm.insert(0, one)
        members = [*[None] * (burn_in - len(warm)), *warm, *members]
        offsets = range(-burn_in, length)
        needed = [one for one in members if one is not None]
        for one, offset in zip(members, offsets, strict=True):
            if one is not None:
                needed += [frame for frame in self.frames(step, offset, longest) if frame]
        if not all(map(self.may_be_drawn, needed)):
            return None
        item: Item = {}
        for name in step.fields:
            if name not in stack:
                missing = self.zeros(name)
                item[name] = [missing if one is None else one.fields[name] for one in members]
            else:
                k, zero = stack[name], self.zeros(name)
                item[name] = [
                    np.stack([zero] * k) if one is None
                    else np.stack([f.fields[name] for f in self.frames(step, offset, k) if f])
                    for one, offset in zip(members, offsets, strict=True)
                ]  # fmt: skip
        item |= columns_of(members)
        item["mask"] = np.array([one is not None for one in members])
        place = {"episode": episode.key, "t": step.t, "burn_in": burn_in}
        return {**item, **keys_of(step), **{f"info.{name}": v for name, v in place.items()}}

    def trajectory(self, step: Step, include_partial: bool = False) -> Item | None:
        episode = step.episode
        if episode is None or episode.status == "aborted":
            return None
        held = [s for (number, _), s in self._places.items() if number == id(episode)]
        if step.t != (min(s.t for s in held) if include_partial else 0):
            return None
        members: list[Step] = []
        while (one := self.at(step, len(members))) is not None:
            members.append(one)
        end = episode.ended_length
        reaches_end = step.t + len(members) == end
        if not include_partial and not (episode.status == "complete" and reaches_end):
            return None
        if not all(map(self.may_be_drawn, members)):
            return None
        item: Item = {name: [one.fields[name] for one in members] for name in step.fields}
        item |= columns_of(members)
        item |= {"mask": np.ones(len(members), bool), "lens": np.int64(len(members))}
        finals = episode.final if reaches_end and episode.final is not None else None
        for name in self.observations:
            item[f"final_{name}"] = self.zeros(name) if finals is None else finals[name]
        if self.observations:
            item["has_final"] = np.bool_(finals is not None)
        place = {
            "episode": episode.key, "t": step.t, "status": episode.status, "length": end,
            "return": episode.total,
            "episode_reward": episode.total if episode.reward is None else episode.reward,
        }  # fmt: skip
        return {**item, **keys_of(step), **{f"info.{name}": v for name, v in place.items()}}


def keys_of(step: Step) -> Item:
    return {"info.task_id": step.task, "info.agent_id": step.agent, "info.step": step.step}


def built_in(step: Step) -> Item:
    reals = {"reward": step.reward, "adv_t": step.adv_t, "v_t": step.v_t}
    with np.errstate(over="ignore"):
        numbers = {k: np.float32(np.nan if v is None else v) for k, v in reals.items()}
    flags = {"terminated": np.bool_(step.terminated), "truncated": np.bool_(step.truncated)}
    return {**numbers, **flags}


def columns_of(members: list[Any]) -> Item:
    """Return the built-in columns of steps; zeros for a missing one."""
    numbers = dict.fromkeys(("reward", "adv_t", "v_t"), np.float32(0))
    nothing = {**numbers, "terminated": np.False_, "truncated": np.False_}
    rows = [nothing if one is None else built_in(one) for one in members]
    return {name: np.array([row[name] for row in rows]) for name in nothing}
