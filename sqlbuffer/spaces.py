"""Gymnasium's spaces: as JSON, as typed fields, and as the structure of a batch."""

import base64
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import getitem
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import checked_dict, checked_flag, refused
from sqlbuffer.display import shown
from sqlbuffer.errors import FieldError, MissingExtraError

OBSERVATION, ACTION = "obs", "action"
# Prefix of the observations after steps.
NEXT = "next_"
# Arrays of a batch whose names are a prefix and the name of a field.
PREFIXES = ("", NEXT, "final_", "seq_", f"seq_{NEXT}")
VARIABLE = -1
_GRAPH = ("nodes", "edges", "edge_links")
_FIXED = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text")
_SUPPORTED = (*_FIXED, "Dict", "Tuple", "Sequence", "Graph")
# Bounds of more items than this are compressed.
_MOST_LISTED = 64

Node = Mapping[str, Any]
Arrays = Mapping[str, Any]
_MISSING = object()
_OF_FIXED_SIZE = ("fixed", "text")  # kinds of fields


def gymnasium_package(caller: str) -> Any:
    """Return the module `gymnasium`.

    Args:
        caller: The call that needs it, for the message.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import gymnasium
    except ImportError:
        raise MissingExtraError(f"{caller} needs gymnasium; run `pip install gymnasium`") from None
    return gymnasium


@dataclass(frozen=True)
class SpaceField:
    """A field of a step, and its place in an observation or action.

    Attributes:
        name: Name of the field, such as `obs_arm_pose`.
        dtype: numpy dtype of its values.
        shape: Shape of a value; begins with -1 if its length varies.
        path: Keys and indices that lead to the value, or to the sequence or graph that it is in.
        inner: Keys and indices within the items of a sequence, or within a graph.
        kind: `fixed` for an array; `text`; `items` for a tuple of the items of a sequence;
            `stacked` for items that are one array, also in a graph.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    path: tuple[Any, ...]
    inner: tuple[Any, ...] = ()
    kind: str = "fixed"

    @property
    def is_variable(self) -> bool:
        """Whether the length varies from step to step."""
        return self.kind in ("items", "stacked")

    def of_one(self, value: Any) -> NDArray[Any]:
        """Return a copy of the field's value in an observation or action of one environment."""
        return self._array(reduce(getitem, self.path, value))

    def of_one_as_several(self, value: Any) -> NDArray[Any]:
        """Return a copy of the value of one environment, of shape (1, *shape)."""
        if self.kind in _OF_FIXED_SIZE:
            return np.array(reduce(getitem, self.path, value) if self.path else value)[None]
        return _objects([self.of_one(value)])

    def of_all(self, value: Any) -> NDArray[Any]:
        """Return copies of the values of n environments, of shape (n, *shape).

        Values of varying length are in an array of n objects.
        """
        values = reduce(getitem, self.path, value)
        if not self.is_variable:
            return np.array(values)
        return _objects([self._array(one) for one in values])

    def empty(self) -> NDArray[Any]:
        """Return the value of one environment that has none, as of several: zeros, or no items."""
        shape = tuple(0 if n == VARIABLE else n for n in self.shape)
        array = np.zeros(shape, self.dtype)
        return _objects([array]) if self.is_variable else array[None]

    def _array(self, value: Any) -> NDArray[Any]:
        if not self.is_variable:
            return np.array(value)
        if self.kind == "items":
            items = [reduce(getitem, self.inner, item) for item in value]
            array = np.array(items) if items else np.empty(0)
        else:
            # The edges of a graph without edges are None.
            for key in self.inner:
                value = None if value is None else value[key]
            array = np.empty(0) if value is None else np.array(value)
        return array if array.size else np.empty((0, *self.shape[1:]), self.dtype)


def _objects(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    objects = np.empty(len(arrays), object)
    for i, array in enumerate(arrays):  # assigned together, numpy would join equal shapes
        objects[i] = array
    return objects


SpaceFields = Mapping[str, SpaceField]


def values_of_one(fields: SpaceFields, value: Any) -> dict[str, NDArray[Any]]:
    """Return copies of the values in an observation or action of one environment, as of several."""
    return {name: field.of_one_as_several(value) for name, field in fields.items()}


def values_of_all(fields: SpaceFields, value: Any) -> dict[str, NDArray[Any]]:
    """Return copies of the values in an observation or action of several environments."""
    return {name: field.of_all(value) for name, field in fields.items()}


class Structure:
    """How the fields of a buffer are nested in its spaces.

    Args:
        roots: For `obs` and `action`, where they are nested: dicts and tuples with the names of
            fields.

    Example:
        >>> structure = Structure({"obs": {"image": "obs_image", "arm": {"pose": "obs_arm_pose"}}})
        >>> structure.nested("next_obs", {"next_obs_arm_pose": 3})
        {'arm': {'pose': 3}}
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.roots = dict(roots)

    def nested(self, name: str, arrays: Arrays) -> Any:
        """Return the arrays of `obs`, `next_obs`, `action` and the like in their structure.

        A key of a dict whose arrays are all missing is left out; in a tuple it is None.

        Args:
            name: Name of a root, with or without a prefix.
            arrays: Arrays by name.

        Returns:
            Dicts and tuples of the arrays; None if there is none.
        """
        for prefix in PREFIXES:
            tree = self.roots.get(name[len(prefix) :]) if name.startswith(prefix) else None
            if tree is not None:
                found = _filled(tree, prefix, arrays)
                return None if found is _MISSING else found
        return None

    def names(self, arrays: Arrays) -> list[str]:
        """Return the names under which arrays are nested: `obs`, `next_obs`, `action` and others
        of this kind.
        """
        names = (prefix + root for prefix in PREFIXES for root in self.roots)
        return [n for n in names if n not in arrays and self.nested(n, arrays) is not None]

    def leaves(self, name: str) -> list[str]:
        """Return the names of the arrays that are nested under a name."""
        for prefix in PREFIXES:
            tree = self.roots.get(name[len(prefix) :]) if name.startswith(prefix) else None
            if tree is not None:
                return [prefix + leaf for leaf in leaves_of(tree)]
        return []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self.roots == other.roots

    __hash__ = None  # type: ignore[assignment]


def _filled(tree: Any, prefix: str, arrays: Arrays) -> Any:
    if isinstance(tree, dict):
        parts = {key: _filled(part, prefix, arrays) for key, part in tree.items()}
        there = {key: part for key, part in parts.items() if part is not _MISSING}
        return there or _MISSING
    if isinstance(tree, tuple):
        items = [_filled(part, prefix, arrays) for part in tree]
        if all(item is _MISSING for item in items):
            return _MISSING
        return tuple(None if item is _MISSING else item for item in items)
    return arrays.get(prefix + tree, _MISSING)


def leaves_of(tree: Any) -> Iterator[Any]:
    """Yield what dicts and tuples hold, in order."""
    if isinstance(tree, (dict, tuple)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves_of(part)
    else:
        yield tree


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(part, change) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_mapped(part, change) for part in tree)
    return change(tree)


class Spaces:
    """The observation space and the action space of an environment.

    A buffer stores them as JSON. Two are equal if their spaces are. A subclass of one of
    gymnasium's spaces is stored as that space.

    Args:
        observation: A gymnasium space, or the JSON of one.
        action: Likewise.

    Raises:
        FieldError: Something else, or a space that cannot be stored, such as OneOf.

    Example:
        >>> from gymnasium.spaces import Box, Dict, Discrete
        >>> spaces = Spaces(Dict({"pose": Box(-1, 1, (3,))}), Discrete(4))
        >>> spaces.action, spaces.to_json()["action"]
        (Discrete(4), {'type': 'Discrete', 'n': 4})
        >>> Spaces(**spaces.to_json()) == spaces
        True
    """

    def __init__(self, observation: Any, action: Any) -> None:
        self._nodes = {
            "observation": _node_of(observation, OBSERVATION),
            "action": _node_of(action, ACTION),
        }
        self._trees = {
            OBSERVATION: _tree_of(OBSERVATION, self._nodes["observation"]),
            ACTION: _tree_of(ACTION, self._nodes["action"]),
        }
        _check_distinct(field.name for tree in self._trees.values() for field in leaves_of(tree))

    @cached_property
    def observation(self) -> Any:
        """Space of an observation.

        Raises:
            MissingExtraError: gymnasium is not installed.
        """
        return _space_of(self._nodes["observation"])

    @cached_property
    def action(self) -> Any:
        """Space of an action.

        Raises:
            MissingExtraError: gymnasium is not installed.
        """
        return _space_of(self._nodes["action"])

    @cached_property
    def structure(self) -> Structure | None:
        """How the fields are nested; None if neither space has parts.

        :meta private:
        """
        trees = {root: self.tree(root) for root in self._trees}
        nested = {root: tree for root, tree in trees.items() if not isinstance(tree, str)}
        return Structure(nested) if nested else None

    def tree(self, root: str) -> Any:
        """Return the names of the fields of `obs` or `action`, nested as in the space.

        :meta private:
        """
        return _mapped(self._trees[root], lambda field: field.name)

    def fields_of(self, root: str) -> dict[str, SpaceField]:
        """Return the fields of the observation (`obs`) or the action (`action`) by name.

        :meta private:
        """
        return {field.name: field for field in leaves_of(self._trees[root])}

    def places(self) -> dict[str, tuple[tuple[Any, ...], str]]:
        """Return for each field its keys and indices in the space, and the space there in words.

        :meta private:
        """
        nodes = {OBSERVATION: self._nodes["observation"], ACTION: self._nodes["action"]}
        return {
            name: (field.path, described(reduce(_part, field.path, node)))
            for root, node in nodes.items()
            for name, field in self.fields_of(root).items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the spaces as JSON, by the names of the constructor's arguments."""
        return {"observation": self._nodes["observation"], "action": self._nodes["action"]}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spaces):
            return NotImplemented
        return all(
            _comparable(node) == _comparable(other._nodes[name])
            for name, node in self._nodes.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return type(self), (self._nodes["observation"], self._nodes["action"])

    def __repr__(self) -> str:
        return (
            f"Spaces({described(self._nodes['observation'])}, {described(self._nodes['action'])})"
        )

    def differences(self, stored: "Spaces | None") -> list[str]:
        """Return how these spaces differ from stored ones, a line for each of the two.

        :meta private:
        """
        lines = []
        for name, node in self._nodes.items():
            other = None if stored is None else stored._nodes[name]
            if other is None or _comparable(node) != _comparable(other):
                there = "nothing" if other is None else described(other)
                lines.append(
                    f"the {name} space is stored as {there}, and was given as {described(node)}"
                )
        return lines


def parse_spaces(given: Any) -> Spaces | None:
    """Return the spaces of a setting: `Spaces`, or a dict with `observation` and `action`.

    Raises:
        FieldError: Something else, or a space that cannot be stored.
    """
    if given is None or isinstance(given, Spaces):
        return given
    if isinstance(given, Mapping) and set(given) == {"observation", "action"}:
        return Spaces(given["observation"], given["action"])
    raise refused(
        given, "spaces", "a dict of the spaces 'observation' and 'action'", error=FieldError
    )


def fields_from_env(
    env: Any,
    *,
    next_observation: bool = False,
    info_fields: Mapping[str, Any] | None = None,
    reward_field: str | None = None,
) -> dict[str, Any]:
    """Return what `ReplayBuffer` takes to hold the steps of an environment.

    The observation is the field `obs`, the action `action`. Parts of spaces are fields of their
    own:

    - A Dict or Tuple space has a field for each part, `obs_<key>` or `obs_<index>`. Characters that
      a name cannot have become `_`.
    - Text is a field `U<n>` of its longest text.
    - Sequence is a field of varying length, `(-1, *shape)`. If its items have parts, each part is
      such a field.
    - Graph has the fields `<name>_nodes`, `<name>_edges` and `<name>_edge_links`, of varying
      length. Edges that are None are stored as none. A graph without an edge space has nodes only.

    An environment of several agents (PettingZoo's `ParallelEnv`) has the fields `obs_<agent>`,
    `action_<agent>`, `reward_<agent>`, `terminated_<agent>` and `mask_<agent>` of each agent; see
    `ReplayBuffer.record`.

    Args:
        env: A gymnasium environment, single or vectorized, or a parallel one of PettingZoo.
        next_observation: Also declare `next_obs`, for transitions that are stored whole.
        info_fields: Values of `info` to store with the observation that they come with, by name,
            each declared as a field is: `{"action_mask": ("int8", (4,))}`. A value that `info` may
            lack needs a default.
        reward_field: Field for the whole reward of an environment with vector rewards. Its shape is
            that of the environment's `reward_space`.

    Returns:
        `{"fields": ..., "observation_fields": ..., "spaces": ...}`.

    Raises:
        ArgumentError: `env` is not an environment, or another argument is not what it should be.
        FieldError: A space that cannot be stored, such as OneOf or a Sequence of Sequences, an
            `info` field of a name that is taken, or an environment without `reward_space`.
        MissingExtraError: gymnasium is not installed.

    Example:
        >>> import gymnasium
        >>> from sqlbuffer import ReplayBuffer
        >>> with gymnasium.make("CartPole-v1") as env:
        ...     buffer = ReplayBuffer("sqlite://", **fields_from_env(env))
        >>> {name: str(spec) for name, spec in buffer.fields.items()}
        {'obs': 'float32(4,)', 'action': 'int64'}
        >>> buffer.spaces.action
        Discrete(2)
    """
    gymnasium_package("fields_from_env()")
    next_observation = checked_flag(next_observation, "next_observation")
    spaces = spaces_of(env)
    observed, acted = (_declared(spaces.fields_of(root)) for root in (OBSERVATION, ACTION))
    more: dict[str, Any] = {}
    if is_parallel(env):
        if info_fields or reward_field is not None:
            raise FieldError(OF_ONE_AGENT)
        more, masks = agent_fields(env)
        observed |= masks
    elif reward_field is not None:
        more[reward_field] = _reward_declaration(env, reward_field)
    infos = checked_dict(info_fields or {}, "info_fields", "{'action_mask': ('int8', (4,))}")
    if taken := infos.keys() & {*observed, *acted, *more}:
        raise FieldError(f"info_fields: field {shown(min(taken))} is one of the spaces; rename it")
    observed = {**observed, **infos}
    following = {NEXT + name: declared for name, declared in observed.items()}
    return {
        "fields": {**observed, **acted, **more, **(following if next_observation else {})},
        "observation_fields": list(observed),
        "spaces": spaces,
    }


OF_ONE_AGENT = (
    "info_fields and reward_field are for environments of one agent; a parallel environment has a "
    "reward of each agent"
)


def _reward_declaration(env: Any, name: str) -> tuple[str, tuple[int, ...]]:
    """Return the declaration of a vector reward."""
    inside = getattr(env, "unwrapped", env)
    for attribute in ("single_reward_space", "reward_space"):
        space = getattr(inside, attribute, None)
        if space is not None:
            return np.dtype(space.dtype).name, tuple(space.shape)
    raise FieldError(
        f"reward_field: the environment has no reward_space, which says the shape of a reward; "
        f"declare the field {name!r} yourself"
    )


def is_parallel(env: Any) -> bool:
    """Return True for a parallel environment of PettingZoo.

    Raises:
        FieldError: Its agents act in turn.
    """
    if not hasattr(env, "possible_agents"):
        return False
    if hasattr(env, "agent_iter"):
        raise FieldError(
            "the agents of this environment act in turn (PettingZoo's AEC API); give a parallel "
            "environment, such as pettingzoo.utils.aec_to_parallel(env), or write an episode of "
            "each agent with episode()"
        )
    return callable(getattr(env, "observation_space", None))


def agent_field(kind: str, agent: Any) -> str:
    """Return the name of an agent's field, such as `reward_<agent>`."""
    return part_name(kind, agent)


def agent_fields(env: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of each agent next to its spaces: those of a step, and its mask."""
    agents = env.possible_agents
    rewards = {agent_field("reward", agent): "float32" for agent in agents}
    ends = {agent_field("terminated", agent): "bool" for agent in agents}
    return {**rewards, **ends}, {agent_field("mask", agent): "bool" for agent in agents}


def _declared(fields: SpaceFields) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        name: (field.dtype.str.lstrip("<|=") if field.dtype.kind == "U" else field.dtype.name,
               field.shape)
        for name, field in fields.items()
    }  # fmt: skip


def spaces_of(env: Any) -> Spaces:
    """Return the spaces of one environment.

    A vectorized environment has them in addition to the spaces of all its environments. Those of a
    parallel environment are Dict spaces of its agents.

    Raises:
        ArgumentError: It is not an environment.
        FieldError: A space that cannot be stored.
    """
    if not hasattr(env, "observation_space") or not hasattr(env, "action_space"):
        raise refused(env, "env", "a gymnasium environment, such as gymnasium.make('CartPole-v1')")
    if is_parallel(env):
        parts = gymnasium_package("fields_from_env()").spaces.Dict
        return Spaces(
            parts({agent: env.observation_space(agent) for agent in env.possible_agents}),
            parts({agent: env.action_space(agent) for agent in env.possible_agents}),
        )
    return Spaces(
        getattr(env, "single_observation_space", env.observation_space),
        getattr(env, "single_action_space", env.action_space),
    )


def _check_distinct(names: Iterator[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FieldError(
                f"two parts of the space would be the field {shown(name)}; rename a key of the "
                f"space"
            )
        seen.add(name)


def part_name(name: str, key: Any) -> str:
    """Return the name of the field of a part of a space, such as a key of a Dict space.

    Example:
        >>> part_name("obs", "front camera")
        'obs_front_camera'
    """
    letters = (c if f"a{c}".isidentifier() else "_" for c in str(key))
    part = f"{name}_{''.join(letters)}"
    return f"{part}_" if part.endswith("_lens") else part  # that of the lengths in a batch


def part_names(name: str, keys: Iterable[Any]) -> dict[Any, str]:
    """Return the names of the fields of all parts of a space, by their keys.

    Raises:
        FieldError: Two of them are the same.
    """
    names = {key: part_name(name, key) for key in keys}
    _check_distinct(iter(names.values()))
    return names


def _tree_of(name: str, node: Node) -> Any:
    """Return the fields of a space, nested as in the space.

    Raises:
        FieldError: The JSON is not that of a space; names the field.
    """
    try:
        tree = _tree(name, node, SpaceField(name, np.dtype("?"), (), ()))
        _checked_bounds(node)
    except FieldError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, zlib.error) as error:
        raise FieldError(
            f"field {name!r}: {shown(node)} is not the JSON of a space: "
            f"{type(error).__name__} {error}"
        ) from None
    return tree


def _tree(name: str, node: Node, at: SpaceField) -> Any:
    kind = node["type"]
    if kind == "Dict":
        return {key: _tree(part_name(name, key), p, _in(at, key)) for key, p in node["spaces"]}
    if kind == "Tuple":
        parts = enumerate(node["spaces"])
        return tuple(_tree(part_name(name, i), part, _in(at, i)) for i, part in parts)
    if kind in ("Sequence", "Graph") and at.is_variable:
        raise FieldError(
            f"field {name!r}: a space {kind} inside a Sequence or Graph has two lengths that vary; "
            f"declare fields yourself, or wrap the environment"
        )
    if kind == "Sequence":
        how = "stacked" if node.get("stack") else "items"
        return _tree(name, node["space"], replace(at, kind=how))
    if kind == "Graph":
        return _graph(name, node, at)
    if kind not in _FIXED:
        raise ValueError(f"unknown type {kind!r}")
    dtype, shape = _form_of(node)
    items = (VARIABLE,) if at.is_variable else ()
    text = "text" if kind == "Text" and not at.is_variable else at.kind
    return replace(at, name=name, dtype=dtype, shape=(*items, *shape), kind=text)


def _in(at: SpaceField, key: Any) -> SpaceField:
    if at.is_variable:
        return replace(at, inner=(*at.inner, key))
    return replace(at, path=(*at.path, key))


def _graph(name: str, node: Node, at: SpaceField) -> dict[str, Any]:
    inside = replace(at, kind="stacked")
    tree = {"nodes": _tree(f"{name}_nodes", node["nodes"], _in(inside, 0))}
    if node.get("edges") is not None:
        tree["edges"] = _tree(f"{name}_edges", node["edges"], _in(inside, 1))
        links = {"type": "Box", "dtype": "int32", "shape": [2]}
        tree["edge_links"] = _tree(f"{name}_edge_links", links, _in(inside, 2))
    return tree


def _form_of(node: Node) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of a value of a space of fixed size."""
    kind = node["type"]
    if kind == "Text":
        return np.dtype(f"U{max(1, int(node['max_length']))}"), ()
    if kind == "MultiBinary":
        n = node["n"]
        return np.dtype("int8"), tuple(n) if isinstance(n, list) else (int(n),)
    shape = () if kind == "Discrete" else tuple(int(n) for n in node["shape"])
    return np.dtype(node.get("dtype", "int64")), shape


# Spaces as JSON, and back.


def _node_of(space: Any, name: str) -> Node:
    """Return the JSON of a space, or JSON as it is.

    Raises:
        FieldError: Neither; names the field.
    """
    if isinstance(space, Mapping) and "type" in space:
        return space
    try:
        from gymnasium import spaces
    except ImportError:
        spaces = None
    if spaces is None or not isinstance(space, spaces.Space):
        raise refused(
            space, f"the space of {name!r}", "a gymnasium space, or the JSON of one",
            error=FieldError,
        )  # fmt: skip
    return _NodeMaker(spaces).node(name, space)


class _NodeMaker:
    """Makes JSON of spaces.

    Args:
        spaces: The module `gymnasium.spaces`.
    """

    def __init__(self, spaces: Any) -> None:
        self._spaces = spaces

    def node(self, name: str, space: Any) -> Node:
        for kind in _SUPPORTED:
            if isinstance(space, getattr(self._spaces, kind)):
                node: Node = getattr(self, f"_{kind.lower()}")(name, space)
                return {"type": kind, **node}
        raise FieldError(
            f"field {name!r}: a space {type(space).__name__} cannot be stored; it takes "
            f"{', '.join(_SUPPORTED)}; declare fields yourself, or wrap the environment"
        )

    def _box(self, _: str, space: Any) -> Node:
        return {
            "dtype": space.dtype.name,
            "shape": list(space.shape),
            "low": _encoded(space.low),
            "high": _encoded(space.high),
        }

    def _discrete(self, _: str, space: Any) -> Node:
        start = {"start": int(space.start)} if int(space.start) else {}
        return {"n": int(space.n), **start, **_dtype_unless_int64(space)}

    def _multidiscrete(self, _: str, space: Any) -> Node:
        first = np.asarray(getattr(space, "start", 0))
        start = {"start": _encoded(first)} if first.any() else {}
        return {
            "shape": list(space.nvec.shape),
            "nvec": _encoded(space.nvec),
            **start,
            **_dtype_unless_int64(space),
        }

    def _multibinary(self, _: str, space: Any) -> Node:
        n = space.n
        return {"n": int(n) if isinstance(n, (int, np.integer)) else [int(size) for size in n]}

    def _text(self, name: str, space: Any) -> Node:
        characters = "".join(space.character_list)
        if not _is_storable(characters):
            raise FieldError(
                f"field {name!r}: a space Text whose characters include a surrogate or NUL cannot "
                f"be stored; use others"
            )
        shortest = {"min_length": space.min_length} if space.min_length != 1 else {}
        is_default = set(characters) == set(_default_charset())
        charset = {} if is_default else {"charset": characters}
        return {"max_length": space.max_length, **shortest, **charset}

    def _dict(self, name: str, space: Any) -> Node:
        for key in space.spaces:
            is_key = isinstance(key, int) and not isinstance(key, bool)
            if not is_key and not (isinstance(key, str) and _is_storable(key)):
                raise FieldError(
                    f"field {name!r}: the key {shown(key)} of a space Dict is neither text without "
                    f"NUL and surrogates nor an integer; rename it"
                )
        parts = space.spaces.items()
        return {"spaces": [[key, self.node(part_name(name, key), part)] for key, part in parts]}

    def _tuple(self, name: str, space: Any) -> Node:
        parts = enumerate(space.spaces)
        return {"spaces": [self.node(part_name(name, i), part) for i, part in parts]}

    def _sequence(self, name: str, space: Any) -> Node:
        stack = {"stack": True} if space.stack else {}
        return {"space": self.node(name, space.feature_space), **stack}

    def _graph(self, name: str, space: Any) -> Node:
        parts = {"nodes": space.node_space, "edges": space.edge_space}
        return {
            part: None if inner is None else self.node(f"{name}_{part}", inner)
            for part, inner in parts.items()
        }


def _is_storable(text: str) -> bool:
    """Return True for text that both databases take."""
    return not any("\ud800" <= c <= "\udfff" or c == "\0" for c in text)


def _dtype_unless_int64(space: Any) -> dict[str, str]:
    return {} if space.dtype == np.int64 else {"dtype": np.dtype(space.dtype).name}


def _default_charset() -> str:
    from gymnasium.spaces import Text

    return "".join(Text(1).character_list)


def _encoded(values: NDArray[Any]) -> Any:
    """Return an array as JSON: one value where all are equal, a list, or compressed bytes."""
    if values.size and (values == values.flat[0]).all():
        return _number(values.flat[0])
    if values.size <= _MOST_LISTED:
        return [_number(value) for value in values.ravel()]
    packed = zlib.compress(values.astype(values.dtype.newbyteorder("<")).tobytes(), 9)
    return {"zlib": base64.b64encode(packed).decode()}


def _number(value: Any) -> Any:
    if value.dtype.kind != "f":
        return value.item()
    if not np.isfinite(value):
        return str(float(value))  # JSON has no infinity
    shortest = float(str(value))  # 4.8 of a float32, which is 4.800000190734863
    return shortest if value.dtype.type(shortest) == value else float(value)


def _decoded(encoded: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the array that `_encoded` made JSON of."""
    if isinstance(encoded, Mapping):
        packed = zlib.decompress(base64.b64decode(encoded["zlib"], validate=True))
        values = np.frombuffer(packed, dtype.newbyteorder("<")).astype(dtype)
    elif isinstance(encoded, list):
        values = np.array([_from_number(value) for value in encoded]).astype(dtype)
    else:
        return np.full(shape, _from_number(encoded), dtype)
    return values.reshape(shape)


def _from_number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _checked_bounds(node: Node) -> None:
    """Raise an error of Python's if the arrays of a space of a tree are malformed."""
    for inner in _nodes_in(node):
        for name in ("low", "high", "nvec", "start"):
            if name in inner:
                _decoded(inner[name], *_form_of(inner))


def _nodes_in(node: Node) -> Iterator[Node]:
    yield node
    if node["type"] == "Dict":
        parts = [part for _, part in node["spaces"]]
    elif node["type"] == "Tuple":
        parts = list(node["spaces"])
    else:
        parts = [node[name] for name in ("space", "nodes", "edges") if node.get(name) is not None]
    for part in parts:
        yield from _nodes_in(part)


def _space_of(node: Node) -> Any:
    """Return the gymnasium space of JSON."""
    spaces = gymnasium_package("the spaces of a buffer").spaces
    kind = node["type"]
    if kind == "Dict":
        return spaces.Dict([(key, _space_of(part)) for key, part in node["spaces"]])
    if kind == "Tuple":
        return spaces.Tuple([_space_of(part) for part in node["spaces"]])
    if kind == "Sequence":
        return spaces.Sequence(_space_of(node["space"]), stack=bool(node.get("stack")))
    if kind == "Graph":
        edges = node.get("edges")
        return spaces.Graph(_space_of(node["nodes"]), None if edges is None else _space_of(edges))
    if kind == "Text":
        charset = {"charset": node["charset"]} if "charset" in node else {}
        return spaces.Text(node["max_length"], min_length=node.get("min_length", 1), **charset)
    if kind == "MultiBinary":
        return spaces.MultiBinary(node["n"])
    dtype, shape = _form_of(node)
    if kind == "Discrete":
        given = {"dtype": dtype.type} if "dtype" in node else {}  # gymnasium 1.1 has none
        return spaces.Discrete(node["n"], start=node.get("start", 0), **given)
    if kind == "MultiDiscrete":
        start = {"start": _decoded(node["start"], dtype, shape)} if "start" in node else {}
        return spaces.MultiDiscrete(_decoded(node["nvec"], dtype, shape), dtype.type, **start)
    low, high = (_decoded(node[bound], dtype, shape) for bound in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _comparable(node: Any) -> Any:
    """Return JSON in which the order of a Dict's keys and a Text's characters does not count."""
    if isinstance(node, Mapping):
        comparable = {name: _comparable(value) for name, value in node.items()}
        if "charset" in node:
            comparable["charset"] = sorted(node["charset"])
        if node.get("type") == "Dict":
            comparable["spaces"] = {key: _comparable(part) for key, part in node["spaces"]}
        return comparable
    return node


def described(node: Node) -> str:
    """Return a space for people, in the words of gymnasium."""
    kind = node["type"]
    if kind == "Dict":
        inside = ", ".join(f"{shown(key)}: {described(part)}" for key, part in node["spaces"])
    elif kind == "Tuple":
        inside = ", ".join(map(described, node["spaces"]))
    elif kind == "Sequence":
        inside = described(node["space"]) + (", stack=True" if node.get("stack") else "")
    elif kind == "Graph":
        edges = node.get("edges")
        inside = f"{described(node['nodes'])}, {None if edges is None else described(edges)}"
    elif kind == "Box":
        bounds = (_described_bound(node[bound]) for bound in ("low", "high"))
        inside = f"{', '.join(bounds)}, {tuple(node['shape'])}, {node['dtype']}"
    else:
        values = {name: value for name, value in node.items() if name != "type"}
        first = next(iter(values))
        if kind == "MultiDiscrete":
            values["nvec"] = _described_bound(values["nvec"])
        inside = ", ".join(
            str(value) if name == first else f"{name}={value}" for name, value in values.items()
        )
    return f"{kind}({inside})"


def _part(node: Node, key: Any) -> Node:
    """Return the space of a key or an index of a Dict or Tuple space."""
    part: Node = dict(node["spaces"])[key] if node["type"] == "Dict" else node["spaces"][key]
    return part


def _described_bound(encoded: Any) -> str:
    """Return bounds in short; `..` stands for many that differ."""
    if isinstance(encoded, Mapping):
        return f"[.. {zlib.crc32(encoded['zlib'].encode()):08x}]"
    return f"[{', '.join(map(str, encoded))}]" if isinstance(encoded, list) else str(encoded)
