"""Beginnings, steps and endings of episodes, with their values as they are stored."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.display import shown
from sqlbuffer.encoding.columns import check_step_names, flag_of
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.priority_values import check_kept, checked_priority
from sqlbuffer.encoding.records import Record, encode_extra, encode_messages, encode_real
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import ON_REQUEST, Casting, FieldSpec, value_or_default
from sqlbuffer.steps import PAYLOADS, uuid7s


class EpisodeStart(NamedTuple):
    """The beginning of an episode.

    Attributes:
        key: The user's id of the episode.
        task_id: Its task.
        agent_id: Agent that acts.
        model_version: Version of the model that acts.
        meta: JSON of the user's values for the episode.
        session: Key of the session that its steps belong to.
        attempt: 1 for its first writer, and one more for each that continues it.
        writer: Random id of the writer, a UUID.
        group_id: Episodes with the same one belong together; None: those of the task.
        item_id: The work item whose rollout it is.
        parent_id: The user's id of the episode that it came from.
    """

    key: str
    task_id: str
    agent_id: str
    model_version: int | None = None
    meta: str | None = None
    session: str | None = None
    attempt: int = 1
    writer: str | None = None
    group_id: str | None = None
    item_id: int | None = None
    parent_id: str | None = None


class EpisodeEnd(NamedTuple):
    """The end of an episode.

    Attributes:
        key: The user's id of the episode.
        task_id: Its task.
        status: complete or aborted.
        final_arrays: The observation after its last step, packed.
        reward: The episode's own reward.
    """

    key: str
    task_id: str
    status: str
    final_arrays: bytes | None
    reward: float | None = None


class PlacedEpisode(NamedTuple):
    """An episode whose steps are stored together with it.

    Attributes:
        key: The user's id of the episode.
        task_id: Its task.
        agent_id: Agent that acts.
        group_id: Its group.
        parent_id: The user's id of the episode that it came from.
        model_version: Version of the model that acts.
        meta: JSON of the user's values for the episode.
        attempt: Number of its writer; 0 without one.
        writer: Random id of the writer.
        begins: It is made if it is not stored; else only a stored one gets steps.
        t: Place of the first of the steps.
        end_t: Place behind the last one.
        status: The status with which it ends; None: it does not end.
        reward: The episode's own reward.
        final_arrays: The observation after its last step, packed.
    """

    key: str
    task_id: str
    agent_id: str
    group_id: str | None
    parent_id: str | None
    model_version: int | None
    meta: str | None
    attempt: int
    writer: str | None
    begins: bool
    t: int
    end_t: int
    status: str | None
    reward: float | None
    final_arrays: bytes | None


def encode_meta(
    meta: Mapping[str, Any], specs: Mapping[str, FieldSpec], casting: Casting = "same_kind"
) -> str | None:
    """Return the JSON of a user's values for an episode.

    Args:
        meta: Values by name; those that are not declared may be any JSON.
        specs: The declared fields of an episode.
        casting: See `FieldSpec.cast`.

    Raises:
        FieldError: A declared value is missing or does not fit, or another value is not JSON.
    """
    encoder = Encoder()
    declared = {name: _meta_value(spec, meta.get(name), casting) for name, spec in specs.items()}
    whole = {**meta, **declared}
    text = encoder.json(whole, "meta") if whole else None
    if encoder.blob:
        raise FieldError("meta: arrays and bytes are not kept with an episode; give JSON values")
    return text


def _meta_value(spec: FieldSpec, value: Any, casting: Casting) -> Any:
    """Return a declared value as JSON has it: a list, where the field is an array."""
    if value is not None:
        return spec.cast(value, casting=casting).tolist()
    return value_or_default(spec, None, "meta field").tolist()


def pack_final(layout: Layout, final: Mapping[str, Any] | None, casting: Casting) -> bytes | None:
    """Return an observation as the bytes that are stored.

    Args:
        layout: The observation fields.
        final: A value for each; None without an observation.
        casting: See `FieldSpec.cast`.
    """
    if final is not None and not isinstance(final, Mapping):
        raise FieldError(
            f"the final observation is a dict with a value for each observation field "
            f"({', '.join(layout.specs) or 'none'}), got {type(final).__name__}"
        )
    if not final:
        return None
    for name in dict.fromkeys([*layout.specs, *final]):
        if name not in layout.specs or name not in final:
            raise FieldError(
                f"the final observation has the fields {', '.join(layout.specs) or 'none'}, and "
                f"was given with {shown(list(final))}"
            )
    values = {name: spec.cast(final[name], casting=casting) for name, spec in layout.specs.items()}
    columns = {
        name: [value] if layout.specs[name].is_variable else value[None]
        for name, value in values.items()
    }
    (stored,) = layout.compress(layout.pack(columns, 1))
    return None if stored is None else bytes(stored)


# To make several takes a third of the time of each alone.
_IDS_AT_ONCE = 16


class StepEncoder:
    """Makes the records of one episode without typed fields.

    Args:
        beginning: The episode.
        has_priorities: Whether the buffer keeps priorities.
    """

    def __init__(self, beginning: EpisodeStart, has_priorities: bool = False) -> None:
        self._has_priorities, self._beginning = has_priorities, beginning
        self._ids: list[str] = []

    def encode(self, t: int, step: Mapping[str, Any]) -> Record:
        """Return the record of step t; it holds copies.

        Raises:
            FieldError: An unknown field, or a value that cannot be stored.
        """
        check_step_names(step, ())
        tags: dict[str, Any] = {}
        reward = step.get("reward")
        if isinstance(reward, np.ndarray) and reward.shape == ():
            reward = reward[()]
        reward = encode_real(reward, "reward_t", "reward", tags)
        adv_t, v_t = (encode_real(step.get(name), name, name, tags) for name in ON_REQUEST)
        arrays = state = actions = messages = extra = None
        if tags or any(name in step for name in PAYLOADS):
            encoder = Encoder()
            state = encoder.json(step.get("state"), "state")
            actions = encoder.json(step.get("actions"), "actions")
            messages = encode_messages(step.get("messages"), "messages", encoder)
            extra = encode_extra(step.get("extra"), tags, encoder)
            arrays = encoder.blob or None
        of, priority = self._beginning, step.get("priority")
        if priority is not None:
            check_kept(self._has_priorities)
            priority = checked_priority(priority)
        if not self._ids:
            self._ids = uuid7s(_IDS_AT_ONCE)
        return Record(
            self._ids.pop(), of.task_id, None, of.agent_id, None, t, t, time.time(), of.key,
            of.session, state, actions, messages, extra, None, reward, adv_t, v_t,
            flag_of(step.get("terminated"), "terminated"),
            flag_of(step.get("truncated"), "truncated"),
            of.model_version, arrays, None, priority,
        )  # fmt: skip
