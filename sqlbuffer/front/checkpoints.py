"""Checkpoints: marks of what a consumer has acknowledged, with the states of its loaders."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from sqlbuffer.checks import checked_integer, checked_items, checked_text, refused
from sqlbuffer.encoding.records import encode_key
from sqlbuffer.errors import ArgumentError, FieldError
from sqlbuffer.storage.leases import checkpoints
from sqlbuffer.storage.leases.checkpoints import Checkpoint, Restored
from sqlbuffer.storage.store import BufferStore

MOST_STATES = 1_000  # in one checkpoint


def checked_name(value: Any, name: str) -> str:
    """Return the name of a consumer or of a checkpoint."""
    try:
        return encode_key(checked_text(value, name), name)
    except FieldError as error:
        reason, *_ = str(error.args[0]).split(";")
        raise ArgumentError(f"{reason}; give a shorter name, of letters and digits") from error


def checked_optional_name(value: Any, name: str) -> str | None:
    """Return a name, or None."""
    return None if value is None else checked_name(value, name)


class Checkpoints:
    """Makes and restores checkpoints; see the calls of `ReplayBuffer`.

    Args:
        store: The buffer.
    """

    def __init__(self, store: BufferStore) -> None:
        self._keeping = store.leases

    def make(self, name: str, consumer: str, loaders: Sequence[Any], keep: int) -> Checkpoint:
        """Mark what a consumer has acknowledged."""
        name, consumer = checked_name(name, "name"), checked_name(consumer, "consumer")
        keep = checked_integer(keep, "keep", 1)
        sources = checked_items(loaders, "loaders", "a list of loaders and samplers", MOST_STATES)
        states = [_state_of(source, i) for i, source in enumerate(sources)]
        return checkpoints.make(self._keeping, name, consumer, states, keep)

    def restore(self, name: str, consumer: str) -> Restored:
        """Go back to a mark."""
        name, consumer = checked_name(name, "name"), checked_name(consumer, "consumer")
        return checkpoints.restore(self._keeping, name, consumer)

    def of(self, consumer: str | None, name: str | None) -> list[Checkpoint]:
        """Return marks."""
        consumer = checked_optional_name(consumer, "consumer")
        return checkpoints.checkpoints_of(
            self._keeping, consumer, checked_optional_name(name, "name")
        )

    def delete(self, consumer: str) -> int:
        """Delete the marks of a consumer."""
        return checkpoints.forget(self._keeping, checked_name(consumer, "consumer"))


def _state_of(loader: Any, place: int) -> Any:
    name = f"loaders[{place}]"
    if not callable(getattr(loader, "state_dict", None)):
        raise refused(loader, name, "a loader, a sampler, or another object with state_dict()")
    state = loader.state_dict()
    try:
        # NaN is none of JSON.
        return json.loads(json.dumps(state, allow_nan=False, default=_plain))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{name}: its state_dict() cannot be stored as JSON ({error}); save it in your own "
            f"checkpoint file"
        ) from error


def _plain(value: Any) -> Any:
    """Return a number or an array of numpy as JSON has it."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is no JSON value")
