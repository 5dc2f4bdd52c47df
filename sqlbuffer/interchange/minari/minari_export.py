"""Write the whole episodes of a buffer to a Minari data set."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.errors import FieldError, InsufficientDataError
from sqlbuffer.interchange.minari.minari_package import minari_package
from sqlbuffer.interchange.minari.minari_spaces import DatasetSpaces, dataset_spaces
from sqlbuffer.steps.batches import Batch

EPISODES_AT_ONCE = 16
# Such steps hold images: one episode is read after the other.
LARGE_STEP_BYTES = 4096
_FLAGS = ("reward", "terminated", "truncated")


def export_minari(
    buffer: ReplayBuffer,
    dataset_id: str,
    *,
    env: Any = None,
    condition: Condition = None,
    fields: Sequence[str] | None = None,
    overwrite: bool = False,
    data_format: str = "arrow",
    **metadata: Any,
) -> Any:
    """Write the whole episodes of a buffer to a Minari data set; return the `MinariDataset`.

    An episode of N steps has N + 1 observations. Images are stored without loss. Fields that are
    neither observations nor actions become `infos`: the value of step t is at t + 1, and 0 is
    before the first step.

    These episodes are left out: those that are open or aborted, that have lost steps or are evicted
    before they are read, and that have no observation after the last step. The data set is in the
    folder that `MINARI_DATASETS_PATH` names.

    Args:
        buffer: A buffer with typed fields, such as those of `fields_from_env`.
        dataset_id: Its name for Minari, such as `cartpole/recorded-v0`.
        env: The environment that was recorded: its id, its spec, or itself. Its spaces become those
            of the data set. Without one they are boxes with the bounds of each field's dtype.
        condition: Which episodes, by their first step.
        fields: The fields of `infos`; by default all others, but for `next_<observation>`.
        overwrite: Replace a data set of that name.
        data_format: How Minari stores it: `arrow`, `parquet` or `hdf5`.
        **metadata: More arguments of `minari.create_dataset_from_buffers`, such as `author`,
            `algorithm_name` and `description`.

    Raises:
        FieldError: The fields and the spaces do not fit, or Minari cannot hold a field.
        FileExistsError: There is a data set of that name.
        InsufficientDataError: The buffer has no whole episode.
        MissingExtraError: Minari is not installed.
    """
    minari = minari_package("export_minari()")
    with _made(env) as made:
        spaces = dataset_spaces(buffer.fields, buffer.observation_fields, made)
    episodes = _episodes(buffer, spaces, _info_fields(buffer, spaces, fields), condition)
    first = next(episodes, None)
    if first is None:
        raise InsufficientDataError(
            f"buffer {buffer.name!r} has no whole episode that matches; Minari takes episodes that "
            f"have ended, with the observation after their last step"
        )
    _make_room(minari, dataset_id, overwrite)
    return minari.create_dataset_from_buffers(
        dataset_id, chain([first], episodes), env=env, observation_space=spaces.observation,
        action_space=spaces.action, data_format=data_format, jpeg_encoding=False, **metadata,
    )  # fmt: skip


@contextmanager
def _made(env: Any) -> Iterator[Any]:
    """Give an environment, made for this if only its id or spec is known."""
    if env is None or hasattr(env, "observation_space"):
        yield env
        return
    import gymnasium

    with gymnasium.make(env) as made:
        yield made


def _make_room(minari: Any, dataset_id: str, overwrite: bool) -> None:
    """Remove a data set of that name, if it may go or an export of it was broken off."""
    try:
        found = minari.load_dataset(dataset_id)
    except FileNotFoundError:
        return
    if found.total_episodes and not overwrite:
        raise FileExistsError(
            f"there is a Minari data set {dataset_id!r} with {found.total_episodes:,} episodes; "
            f"choose another name, or overwrite it (`overwrite=True`, on the command line "
            f"`--overwrite`)"
        )
    minari.delete_dataset(dataset_id)


def _info_fields(
    buffer: ReplayBuffer, spaces: DatasetSpaces, fields: Sequence[str] | None
) -> tuple[str, ...]:
    used = {*spaces.observation_fields, *spaces.action_fields}
    if fields is None:
        following = {f"next_{name}" for name in spaces.observation_fields}
        fields = [name for name in buffer.fields if name not in used | following]
    for name in fields:
        spec = buffer.fields.get(name)
        if spec is None or name in used:
            raise FieldError(f"field {name!r} is not one of the other fields of the buffer")
        if spec.is_variable or np.dtype(spec.dtype).kind not in "fiub":
            raise FieldError(
                f"field {name!r} is {spec}, and Minari's infos take numbers of a fixed shape; "
                f"choose the fields of the infos with `fields=[...]`"
            )
    return tuple(fields)


def _episodes(
    buffer: ReplayBuffer, spaces: DatasetSpaces, infos: Sequence[str], condition: Condition
) -> Iterator[Any]:
    """Yield the episodes in the order in which they began, as Minari takes them."""
    own = (*spaces.observation_fields, *spaces.action_fields, *infos)
    specs = [buffer.fields[name] for name in own]
    n_bytes = sum(np.dtype(spec.dtype).itemsize * math.prod(spec.shape) for spec in specs)
    loader = buffer.loader(
        "trajectory", 1 if n_bytes > LARGE_STEP_BYTES else EPISODES_AT_ONCE, shuffle=False,
        epochs=1, fields=(*own, *_FLAGS), condition=condition,
    )  # fmt: skip
    for batch in loader:
        for i in range(len(batch.lens)):
            if batch.has_final[i]:
                yield _episode(batch, i, spaces, infos)


def _episode(batch: Batch, i: int, spaces: DatasetSpaces, infos: Sequence[str]) -> Any:
    from minari.data_collector import EpisodeBuffer

    n = int(batch.lens[i])
    observations = {
        name: np.concatenate([batch[name][i, :n], batch[f"final_{name}"][i][None]])
        for name in spaces.observation_fields
    }
    others = {}
    for name in infos:
        values = batch[name][i, :n]
        whole = np.concatenate([np.zeros_like(values[:1]), values])
        # Minari cannot read back an array of scalars among the infos.
        others[name] = list(whole) if whole.ndim == 1 else whole
    return EpisodeBuffer(
        observations=spaces.observations(observations),
        actions=spaces.actions({name: batch[name][i, :n] for name in spaces.action_fields}),
        rewards=batch.reward[i, :n],
        terminations=batch.terminated[i, :n],
        truncations=batch.truncated[i, :n],
        infos=others or None,
    )
