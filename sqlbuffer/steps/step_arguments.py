"""The arguments of one step: fixed names with their types, and the fields that a buffer declares.

PEP 728 has a `TypedDict` with `extra_items` for this, but mypy does not support it. A function's
parameters work for every type checker and for `help`.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Concatenate, ParamSpec, SupportsFloat, SupportsIndex, TypedDict, TypeVar

import numpy as np

# Types of the values that callers may give: numbers become text, and scalars of numpy and torch
# become those of Python.
Text = str | SupportsIndex | None
Flag = bool | np.bool_ | None
Number = SupportsFloat | None
Integer = SupportsIndex | None
Object = Mapping[str, Any] | None
# One value for all rows, or one for each: a list, an array or a column of pandas.
Texts = str | Collection[Any] | None
Integers = Integer | Collection[Any]
Numbers = Number | Collection[Any]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class StepKeys(TypedDict, total=False):
    """Keyword arguments of `extend`: one value for all rows, or n values."""

    id: Collection[Any] | None
    task_id: Texts
    agent_id: Texts
    step: Integers
    model_version: Integers
    session_id: Texts
    episode_id: Texts
    priority: Numbers


def values_of_step(
    *,
    state: Any = None,
    actions: Any = None,
    messages: Any = None,
    reward: Number = None,
    adv_t: Number = None,
    v_t: Number = None,
    terminated: Flag = None,
    truncated: Flag = None,
    extra: Object = None,
    priority: Number = None,
    **fields: Any,
) -> None:
    """The arguments of `EpisodeWriter.append`."""


def whole_step(
    *,
    state: Any = None,
    actions: Any = None,
    action: Any = None,
    messages: Any = None,
    reward: Number = None,
    reward_t: Number = None,
    adv_t: Number = None,
    v_t: Number = None,
    terminated: Flag = None,
    truncated: Flag = None,
    extra: Object = None,
    priority: Number = None,
    id: Text = None,
    task_id: Text = None,
    task_name: Text = None,
    agent_id: Text = None,
    step: Integer = None,
    execute_time: Number = None,
    pre_agent: Text = None,
    episode_id: Text = None,
    model_version: Integer = None,
    session_id: Text = None,
    **fields: Any,
) -> None:
    """The arguments of `ReplayBuffer.add`."""


def takes(
    arguments: Callable[P, Any],
) -> Callable[[Callable[Concatenate[S, ...], T]], Callable[Concatenate[S, P], T]]:
    """Give a method that passes its arguments on the parameters of another function.

    Args:
        arguments: A function with the parameters. It is not called.
    """
    named = inspect.signature(arguments).parameters.values()

    def give(method: Callable[Concatenate[S, ...], T]) -> Callable[Concatenate[S, P], T]:
        own = inspect.signature(method)
        itself = next(iter(own.parameters.values()))
        itself = itself.replace(kind=inspect.Parameter.POSITIONAL_ONLY)
        shown: Any = method
        shown.__signature__ = own.replace(parameters=[itself, *named])
        return method

    return give
