"""Write the whole episodes of a buffer to a Minari data set."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from itertools import chain
from typing import Any

import numpy as np

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import checked_choice, checked_flag, checked_names
from sqlbuffer.copying.buffer_copy import OnProgress, checked_progress
from sqlbuffer.errors import ArgumentError, ExportError, FieldError, InsufficientDataError
from sqlbuffer.interchange.buffer_stream import BufferStream
from sqlbuffer.interchange.minari.minari_package import minari_package
from sqlbuffer.interchange.minari.minari_spaces import DatasetSpaces, dataset_spaces
from sqlbuffer.interchange.minari.new_dataset import NewDataset, checked_dataset_id, dataset_folder
from sqlbuffer.interchange.whole_episodes import Arrays, WholeEpisodes
from sqlbuffer.interchange.work_place import recover

DATA_FORMATS = ("arrow", "parquet", "hdf5")
# Arguments of Minari that this export gives.
_OWN_ARGUMENTS = {
    "dataset_id", "buffer", "env", "action_space", "observation_space", "data_format",
    "jpeg_encoding",
}  # fmt: skip


def export_minari(
    buffer: ReplayBuffer,
    dataset_id: str,
    *,
    env: Any = None,
    condition: Condition = None,
    fields: Sequence[str] | None = None,
    overwrite: bool = False,
    data_format: str = "arrow",
    on_progress: OnProgress | None = None,
    **metadata: Any,
) -> Any:
    """Write the whole episodes of a buffer to a Minari data set, and return the `MinariDataset`.

    An episode of N steps has N + 1 observations. Images are stored without loss. Fields that are
    neither observations nor actions become `infos`: the value of step t is at t + 1, and 0 is
    before the first step.

    The episodes are those that the buffer holds now; writers can continue. An episode is left out
    if it is open or aborted, has lost steps, or has no observation after the last step. The data
    set is made in the folder `MINARI_DATASETS_PATH`, and appears there when it is complete.

    Args:
        buffer: A buffer with typed fields, such as those of `fields_from_env`.
        dataset_id: Name of the data set for Minari, such as `cartpole/recorded-v0`.
        env: Environment that was recorded: its id, its spec, or the environment. Its spaces become
            those of the data set. Without it, the spaces are boxes with the bounds of each field's
            dtype.
        condition: Condition that all steps of an episode must match.
        fields: Fields of `infos`; by default all other fields except `next_<observation>`.
        overwrite: Replace an existing data set.
        data_format: Minari's format: `arrow`, `parquet` or `hdf5`.
        on_progress: Function that is called after each batch with the number of steps read so far,
            the last `seq` read, and the range of `seq` to read.
        **metadata: More arguments of `minari.create_dataset_from_buffers`, such as `author`,
            `algorithm_name` and `description`.

    Raises:
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.
        CopyError: Steps left the buffer before they were read.
        FieldError: The fields and the spaces do not fit, Minari cannot hold a field, or the
            environment cannot be made.
        ExportError: There is a data set of that name.
        InsufficientDataError: The buffer has no whole episode.
        MissingExtraError: Minari is not installed.

    Example:
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32", "action": "int64"})
        >>> columns = {"obs": [0, 1], "action": [0, 1], "terminated": [False, True]}
        >>> buffer.store_episode(columns, final={"obs": 2}).inserted
        2
        >>> export_minari(buffer, "example/exported-v0").total_steps
        2
    """
    overwrite = checked_flag(overwrite, "overwrite")
    on_progress = checked_progress(on_progress)
    checked_choice(data_format, "data_format", DATA_FORMATS)
    if fields is not None:
        fields = checked_names(fields, "fields", "['velocity']", error=ArgumentError)
    checked_buffer(buffer)._conditions.node(condition)
    minari = minari_package("export_minari()")
    checked_dataset_id(dataset_id)
    known = set(signature(minari.create_dataset_from_buffers).parameters) - _OWN_ARGUMENTS
    for name in metadata:
        checked_choice(name, "each further argument", sorted(known))
    with _made(env) as made:
        spaces = dataset_spaces(buffer.fields, buffer.observation_fields, made)
    infos = _info_fields(buffer, spaces, fields)
    _check_free(dataset_id, overwrite)
    read = (*spaces.observation_fields, *spaces.action_fields, *infos)
    with BufferStream(buffer, condition, fields=read) as stream:
        episodes = _episodes(stream, spaces, infos, on_progress)
        first = next(episodes, None)
        if first is None:
            raise InsufficientDataError(
                f"buffer {buffer.name!r} has no whole episode that matches; Minari takes episodes "
                f"that have ended, with the observation after their last step"
            )
        with _quiet(), NewDataset(dataset_id) as new:
            minari.create_dataset_from_buffers(
                new.work_id, chain([first], episodes), env=env,
                observation_space=spaces.observation, action_space=spaces.action,
                data_format=data_format, jpeg_encoding=False, **metadata,
            )  # fmt: skip
            new.finish()
    return minari.load_dataset(dataset_id)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out Minari's warning of each kind of metadata that is not given."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="minari")
        yield


@contextmanager
def _made(env: Any) -> Iterator[Any]:
    """Give an environment, made for this if only its id or spec is known."""
    if env is None or hasattr(env, "observation_space"):
        yield env
        return
    import gymnasium

    try:
        made = gymnasium.make(env)
    except (gymnasium.error.Error, TypeError, ImportError) as error:
        raise FieldError(f"the environment {env!r} cannot be made: {error}") from None
    with made:
        yield made


def _check_free(dataset_id: str, overwrite: bool) -> None:
    recover(dataset_folder(dataset_id))
    if overwrite or not dataset_folder(dataset_id).exists():
        return
    raise ExportError(
        f"there is a Minari data set {dataset_id!r}; choose another name, or overwrite it "
        f"(`overwrite=True`, on the command line `--overwrite`)"
    )


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
    stream: BufferStream,
    spaces: DatasetSpaces,
    infos: Sequence[str],
    on_progress: OnProgress | None,
) -> Iterator[Any]:
    """Yield the episodes in the order in which they ended, as Minari takes them."""
    for episode in WholeEpisodes(stream, on_progress):
        if episode.final is not None:
            yield _episode(episode.arrays, episode.final, spaces, infos)


def _episode(arrays: Arrays, final: Arrays, spaces: DatasetSpaces, infos: Sequence[str]) -> Any:
    from minari.data_collector import EpisodeBuffer

    observations = {
        name: np.concatenate([arrays[name], final[name][None]])
        for name in spaces.observation_fields
    }
    others: dict[str, Any] = {}
    for name in infos:
        whole = np.concatenate([np.zeros_like(arrays[name][:1]), arrays[name]])
        # Minari cannot read back an array of scalars among the infos.
        others[name] = list(whole) if whole.ndim == 1 else whole
    return EpisodeBuffer(
        observations=spaces.observations(observations),
        actions=spaces.actions({name: arrays[name] for name in spaces.action_fields}),
        rewards=arrays["reward"],
        terminations=arrays["terminated"],
        truncations=arrays["truncated"],
        infos=others or None,
    )
