"""What steps in the form of TorchRL are stored as: their entries as fields, their runs as episodes.

TorchRL and tensordict are installed where this module is imported.
"""

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor, is_tensor_collection

from sqlbuffer.errors import FieldError
from sqlbuffer.fields import BUILT_IN, RESERVED
from sqlbuffer.spaces import NEXT
from sqlbuffer.steps import Batch, as_tensor, uuid7

Key = tuple[str, ...]
Arrays = dict[str, NDArray[Any]]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Key of the entries for the time after a step.
AFTER = "next"
# Entries that a draw sets.
OF_A_DRAW = {("index",), ("priority_weight",)}
TRAJECTORY, ENVIRONMENT = ("collector", "traj_ids"), ("env_index",)
# A run that the last extends did not continue has been reset.
N_EXTENDS = 64


@dataclass(frozen=True)
class Entry:
    """A tensor of a step.

    Attributes:
        key: Its place in a TensorDict.
        name: Its field, or `reward`, `terminated` or `truncated`.
        shape: Its shape, of one step.
        dtype: Name of its dtype in torch and numpy.
        is_added: Whether the first steps did not have it: it may be missing, and is zeros then.
    """

    key: Key
    name: str
    shape: tuple[int, ...]
    dtype: str
    is_added: bool = False

    @property
    def is_field(self) -> bool:
        """Whether it is a declared field."""
        return self.name not in BUILT_IN

    def declared(self) -> tuple[Any, ...]:
        """Return the declaration of its field."""
        default = (np.zeros(self.shape, self.dtype),) if self.is_added else ()
        return (self.dtype, self.shape, *default)


@dataclass(frozen=True)
class StepEntries:
    """The entries of a step, and what they are stored as; made with `of`.

    Attributes:
        entries: The tensors.
        nodes: Nested TensorDicts with a batch size of their own, such as those of agents: their
            place, and their batch size behind that of the step.
        flags: Keys of the entries that `reward`, `terminated` and `truncated` are made of.
        done: Key of the flag that an episode has ended; None: there is none.
    """

    entries: tuple[Entry, ...]
    nodes: tuple[tuple[Key, tuple[int, ...]], ...]
    flags: Mapping[str, Key]
    done: Key | None

    @classmethod
    def of(cls, data: TensorDictBase) -> "StepEntries":
        """Return the entries of the steps of a TensorDict.

        Raises:
            FieldError: An entry is not a tensor, or numpy does not have its dtype.
        """
        n_dims = data.batch_dims
        tensors = {key: _tensor(data, key) for key in keys_of(data)}
        if not tensors:
            raise FieldError("the steps have no entries; give at least one")
        place: Key = (AFTER,) if any(key[0] == AFTER for key in tensors) else ()
        flags = {
            name: (*place, name)
            for name in BUILT_IN
            if (*place, name) in tensors and _is_one(tensors[*place, name], n_dims)
        }
        done: Key | None = (*place, "done")
        if done not in tensors or not _is_one(tensors[done], n_dims):
            done = None
        elif not {"terminated", "truncated"} & set(flags):
            flags["terminated"] = done  # of older environments, as TorchRL understands it
        names: dict[Key, str] = {}
        for key in sorted(tensors, key=lambda key: key[0] == AFTER):  # after those that they follow
            if flags.get(key[-1]) == key and _is_exact(tensors[key]):
                names[key] = key[-1]
            else:
                names[key] = _field_name(key, names)
        entries = tuple(_entry(key, value, names[key], n_dims) for key, value in tensors.items())
        return cls(entries, tuple(_nodes(data, n_dims)), flags, done)

    def with_more(self, data: TensorDictBase) -> "StepEntries":
        """Return these entries, and those that a TensorDict has in addition.

        Raises:
            FieldError: Such an entry is not a tensor, or numpy does not have its dtype.
        """
        names = {entry.key: entry.name for entry in self.entries}
        added = []
        for key in sorted(keys_of(data), key=lambda key: key[0] == AFTER):
            if key not in names:
                names[key] = _field_name(key, names)
                value = _tensor(data, key)
                added.append(_entry(key, value, names[key], data.batch_dims, is_added=True))
        known = {key for key, _ in self.nodes}
        nodes = [node for node in _nodes(data, data.batch_dims) if node[0] not in known]
        entries = (*self.entries, *added)
        return replace(self, entries=entries, nodes=(*self.nodes, *nodes))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "entries": [
                [list(e.key), e.name, list(e.shape), e.dtype, e.is_added] for e in self.entries
            ],
            "nodes": [[list(key), list(shape)] for key, shape in self.nodes],
            "flags": {name: list(key) for name, key in self.flags.items()},
            "done": None if self.done is None else list(self.done),
        }

    @classmethod
    def from_json(cls, value: Any) -> "StepEntries":
        """Return what `to_json` has returned."""
        return cls(
            tuple(Entry(tuple(k), name, tuple(s), *more) for k, name, s, *more in value["entries"]),
            tuple((tuple(key), tuple(shape)) for key, shape in value["nodes"]),
            {name: tuple(key) for name, key in value["flags"].items()},
            None if value["done"] is None else tuple(value["done"]),
        )

    @property
    def keys(self) -> set[Key]:
        """Keys of the entries."""
        return {entry.key for entry in self.entries}

    def name_of(self, key: Key | None) -> str | None:
        """Return the name of an entry; None: there is no such entry."""
        return next((entry.name for entry in self.entries if entry.key == key), None)

    def declared(self) -> dict[str, Any]:
        """Return the declaration of the fields, for `sqlbuffer.ReplayBuffer`."""
        fields = {e.name: e.declared() for e in self.entries if e.is_field}
        observed = [root for root, _ in self.followed()]
        return {"fields": fields, **({"observation_fields": observed} if observed else {})}

    def followed(self) -> list[tuple[str, str]]:
        """Return the fields of observations and states, with those for the time after the step."""
        by_key = {entry.key: entry for entry in self.entries}
        pairs = [(entry, by_key.get((AFTER, *entry.key))) for entry in self.entries]
        return [
            (entry.name, after.name)
            for entry, after in pairs
            if after is not None
            and not (entry.is_added or after.is_added)
            and after.name == NEXT + entry.name
            and (after.shape, after.dtype) == (entry.shape, entry.dtype)
            and after.key not in self.flags.values()
        ]

    def only_after(self) -> list[str]:
        """Return the fields of the time after the step that none of the time before has."""
        followed = {after for _, after in self.followed()}
        return [e.name for e in self.entries if self._is_after(e) and e.name not in followed]

    def _is_after(self, entry: Entry) -> bool:
        return entry.is_field and entry.key[0] == AFTER and entry.key not in self.flags.values()

    def check_n_steps(self) -> None:
        """Raise FieldError if there is a reward that transitions of several steps do not add up."""
        others = [
            entry.key
            for entry in self.entries
            if entry.key[0] == AFTER
            and entry.key[-1] == "reward"
            and entry.key != self.flags.get("reward")
        ]
        if others:
            raise FieldError(
                f"n_steps: the returns of several steps are those of ('next', 'reward'), of one "
                f"number, and the steps have {_shown(others[0])} too; draw with n_steps=1, and add "
                f"up with TorchRL's MultiStepTransform(.., reward_keys=..) before extend"
            )

    def sequences(self) -> list[str]:
        """Return the names that transitions of several steps need of each step."""
        reward = self.name_of(self.flags.get("reward"))
        rewards = {"reward"} if reward is None else {"reward", reward}
        return [*sorted(rewards), *self.only_after()]

    def of_last_steps(self, batch: Batch, gamma: float) -> Arrays:
        """Return the entries of the last steps of transitions, and their returns.

        Args:
            batch: The transitions, with `sequences`.
            gamma: Discount of one step.
        """
        m = batch.info["n_steps"]
        rows, last = np.arange(len(m)), m - 1
        arrays = {name: batch[f"seq_{name}"][rows, last] for name in self.only_after()}
        for name, key in self.flags.items():
            arrays[str(self.name_of(key))] = batch[name]
        reward = self.name_of(self.flags.get("reward"))
        if reward not in (None, "reward"):  # of a dtype that the built-in column does not have
            values = batch[f"seq_{reward}"]
            powers = (gamma ** np.arange(values.shape[1])).reshape(-1, *[1] * (values.ndim - 2))
            arrays[str(reward)] = (values * powers).sum(axis=1)
        return arrays

    def columns(self, data: TensorDictBase) -> Arrays:
        """Return the entries of n steps by their names, as arrays of shape (n, *shape).

        Raises:
            FieldError: An entry is missing, or of another shape or dtype.
        """
        n, columns = data.batch_size.numel(), {}
        unknown = set(keys_of(data))
        for entry in self.entries:
            if entry.key not in unknown:
                if entry.is_added:
                    continue
                raise FieldError(
                    f"{_shown(entry.key)} is missing; the steps of this buffer have it. Give it "
                    f"with each step, or begin another buffer, without it"
                )
            unknown.remove(entry.key)
            value = _tensor(data, entry.key)
            shape, dtype = tuple(value.shape[data.batch_dims :]), _dtype_name(entry.key, value)
            if (shape, dtype) != (entry.shape, entry.dtype):
                raise FieldError(
                    f"{_shown(entry.key)}: expected {entry.dtype} of shape {entry.shape} for each "
                    f"step, got {dtype} of shape {shape}; convert it before"
                )
            columns[entry.name] = value.detach().cpu().numpy().reshape(n, *shape)
        for name, key in self.flags.items():
            values = columns[str(self.name_of(key))].reshape(n)
            columns[name] = values.astype(np.float64 if name == "reward" else np.bool_)
        return columns

    def ends(self, columns: Arrays) -> Flags:
        """Return whether an episode ends with each of n steps."""
        names = {"terminated", "truncated", self.name_of(self.done)}
        flags = [values for name, values in columns.items() if name in names]
        n = len(next(iter(columns.values())))
        ends: Flags = np.zeros(n, bool)
        for values in flags:
            ends |= values.reshape(n).astype(bool)
        return ends

    def tensordict(self, arrays: Mapping[str, Any], shape: Sequence[int], device: Any) -> Any:
        """Return steps as a TensorDict.

        Args:
            arrays: Arrays by name, of shape (*batch, *shape).
            shape: The batch size, of as many elements as `batch`.
            device: Device of its tensors.
        """
        nested: dict[str, Any] = {}
        for entry in self.entries:
            tensor = as_tensor(arrays[entry.name], device).reshape((*shape, *entry.shape))
            tensor = tensor.to(getattr(torch, entry.dtype))
            place = nested
            for part in entry.key[:-1]:
                place = place.setdefault(part, {})
            place[entry.key[-1]] = tensor
        data = TensorDict(nested, batch_size=shape, device=device)
        for key, more in self.nodes:
            data.get(key).batch_size = torch.Size([*shape, *more])
        return data


def keys_of(data: TensorDictBase) -> list[Key]:
    """Return the keys of the entries that are stored."""
    keys = map(tuple_of, data.keys(True, True, is_leaf=is_leaf_nontensor))
    return [key for key in keys if key not in OF_A_DRAW]


def _entry(key: Key, value: Any, name: str, n_dims: int, *, is_added: bool = False) -> Entry:
    entry = Entry(key, name, tuple(value.shape[n_dims:]), _dtype_name(key, value), is_added)
    if 0 in entry.shape:
        raise FieldError(f"{_shown(key)} has no elements; leave it out")
    return entry


def _shown(key: Key) -> str:
    return repr(key[0] if len(key) == 1 else key)


def _tensor(data: TensorDictBase, key: Key) -> Any:
    value = data.get(key)
    if isinstance(value, torch.Tensor) and not value.is_nested:
        return value
    raise FieldError(
        f"{_shown(key)} is a {type(value).__name__}, and a step consists of tensors of one shape; "
        f"leave it out with data.exclude(...)"
    )


def _dtype_name(key: Key, value: Any) -> str:
    name = str(value.dtype).removeprefix("torch.")
    try:
        np.dtype(name)
    except TypeError:
        raise FieldError(
            f"{_shown(key)}: numpy has no {name}; convert it before, such as with .float()"
        ) from None
    return name


def _is_one(value: Any, n_dims: int) -> bool:
    return bool(value.shape[n_dims:].numel() == 1 and not value.is_complex())


def _is_exact(value: Any) -> bool:
    """Whether batches have the values of a built-in column as they were given."""
    return value.dtype in (torch.bool, torch.float32, torch.float16)


def _field_name(key: Key, taken: Mapping[Key, str]) -> str:
    """Return the name of a field: the parts of its key, joined."""
    if key[0] == AFTER and (before := taken.get(key[1:])) is not None:
        name = NEXT + before
    else:
        name = re.sub(r"\W", "_", "_".join(key)).lstrip("_") or "entry"
        if not name.isidentifier():
            name = f"entry_{name}"
    # A field `done` makes draws of transitions ask what it means.
    used = {*taken.values(), *BUILT_IN, *RESERVED, "done"}
    while name in used or name.endswith("_lens") or keyword.iskeyword(name):
        name += "_"
    return name


def _nodes(data: TensorDictBase, n_dims: int) -> Iterator[tuple[Key, tuple[int, ...]]]:
    for key in data.keys(True):
        value = data.get(key)
        if is_tensor_collection(value) and value.batch_dims > n_dims:
            yield tuple_of(key), tuple(value.batch_size[n_dims:])


@dataclass(frozen=True)
class Run:
    """An episode that may go on.

    Attributes:
        episode_id: Its id.
        after: Bytes of what its last step has left, by field.
        n_extends: Number of the call that wrote its last step.
    """

    episode_id: str
    after: Mapping[str, bytes]
    n_extends: int


@dataclass(frozen=True)
class RunPlan:
    """What the steps of a call do to the runs.

    Attributes:
        episode_ids: Episode of each step.
        runs: The runs that may go on afterwards.
        ended: Episodes that have ended, although the flags of their last step do not say so.
    """

    episode_ids: list[str]
    runs: Mapping[Any, Run]
    ended: list[str]


class Runs:
    """Divides steps into episodes, and continues them with the next call.

    The steps of a run have one environment and, if the collector tells it, one trajectory. A run
    ends with a step that is done. It also ends if the next step does not begin where the last one
    has led, as after a reset.

    Args:
        followed: The fields that have one for the time after the step, with the name of that.
    """

    def __init__(self, followed: Sequence[tuple[str, str]]) -> None:
        self._followed = followed
        self._runs: Mapping[Any, Run] = {}
        self._n_extends = 0

    def plan(
        self, columns: Arrays, groups: Integers, done: Flags, *, has_trajectories: bool
    ) -> RunPlan:
        """Return what n steps do.

        Args:
            columns: The fields of the steps, in the order of time within a group.
            groups: Numbers of the row, the environment and the trajectory of each; shape (n, 3).
            done: Whether it ends a run, shape (n,).
            has_trajectories: Steps of one group follow each other until one is done.
        """
        found, group_of = np.unique(groups, axis=0, return_inverse=True)
        order = np.argsort(group_of.reshape(-1), kind="stable")
        of = group_of.reshape(-1)[order]
        begins = np.ones(len(of), bool)
        begins[1:] = (of[1:] != of[:-1]) | done[order][:-1]
        if not has_trajectories:
            begins[1:] |= ~self._follow(columns, order)
        starts = np.flatnonzero(begins)
        runs, ended = dict(self._runs), []
        ids = np.empty(len(of), object)
        for start, stop in zip(starts, [*starts[1:], len(of)], strict=True):
            key, first, last = tuple(found[of[start]].tolist()), order[start], order[stop - 1]
            run = runs.pop(key, None)
            if run is not None and self._continues(run, columns, first):
                episode_id = run.episode_id
            else:
                ended += [run.episode_id] if run is not None else []
                episode_id = uuid7()
            ids[order[start:stop]] = episode_id
            if not done[last]:
                after = {name: columns[name][last].tobytes() for _, name in self._followed}
                runs[key] = Run(episode_id, after, self._n_extends)
            elif not self._is_told(columns, last):
                ended.append(episode_id)
        for key in [k for k, run in runs.items() if run.n_extends < self._n_extends - N_EXTENDS]:
            ended.append(runs.pop(key).episode_id)
        return RunPlan(ids.tolist(), runs, ended)

    def follow(self, plan: RunPlan) -> None:
        """Take over a plan whose steps are stored."""
        self._runs = plan.runs
        self._n_extends += 1

    def end(self) -> list[str]:
        """Forget the runs, and return their episodes."""
        episodes, self._runs = [run.episode_id for run in self._runs.values()], {}
        return episodes

    def _continues(self, run: Run, columns: Arrays, i: int) -> bool:
        return all(columns[name][i].tobytes() == run.after[after] for name, after in self._followed)

    def _follow(self, columns: Arrays, order: Integers) -> Flags:
        """Return whether each step but the first begins where the one before it has led."""
        follows = np.ones(len(order) - 1, bool)
        if not len(follows):
            return follows
        for name, after in self._followed:  # bytes, because NaN does not equal itself
            now, then = (
                np.ascontiguousarray(columns[part][order[at]]).view(np.uint8)
                for part, at in ((name, slice(1, None)), (after, slice(None, -1)))
            )
            follows &= (now.reshape(len(follows), -1) == then.reshape(len(follows), -1)).all(axis=1)
        return follows

    def _is_told(self, columns: Arrays, i: int) -> bool:
        return any(
            bool(columns[name][i]) for name in ("terminated", "truncated") if name in columns
        )


def groups_of(data: TensorDictBase) -> tuple[Integers, bool]:
    """Return row, environment and trajectory of each step, and whether they have trajectories."""
    n, n_times = data.batch_size.numel(), data.batch_size[-1]
    groups = np.zeros((n, 3), np.int64)
    groups[:, 0] = np.repeat(np.arange(n // n_times), n_times)
    keys = keys_of(data)
    for place, key in ((1, ENVIRONMENT), (2, TRAJECTORY)):
        if key in keys and data.get(key).numel() == n:
            groups[:, place] = data.get(key).cpu().numpy().reshape(n)
    return groups, TRAJECTORY in keys


def tuple_of(key: Any) -> Key:
    """Return the key of an entry as a tuple."""
    return key if isinstance(key, tuple) else (key,)
