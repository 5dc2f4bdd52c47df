"""Minari data sets of the episodes of a buffer: export and import."""

import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import checked_choice, checked_flag, checked_names, checked_path, refused
from sqlbuffer.copying import OnProgress, checked_progress
from sqlbuffer.errors import (
    ArgumentError,
    ExportError,
    FieldError,
    FileImportError,
    InsufficientDataError,
    MissingExtraError,
    install,
)
from sqlbuffer.fields import FieldSpec
from sqlbuffer.front.step_encoding import EncodedSteps
from sqlbuffer.interchange.buffer_opening import found_buffer, import_target
from sqlbuffer.interchange.output import (
    AGAIN,
    ImportCounts,
    ImportIds,
    ImportReport,
    WorkPlace,
    is_ended,
    named_damage,
    put_in_place,
    recover,
    verified_manifest,
    write_manifest,
)
from sqlbuffer.interchange.streams import Arrays, BufferStream, WholeEpisodes
from sqlbuffer.spaces import (
    ACTION,
    NEXT,
    OBSERVATION,
    SpaceField,
    Spaces,
    fields_from_env,
    leaves_of,
    spaces_of,
    values_of_all,
)
from sqlbuffer.storage.database.urls import Database


def minari_package(caller: str) -> Any:
    """Return the module `minari`.

    Args:
        caller: The call that needs it, for the message.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import minari
    except ImportError:
        raise MissingExtraError(f"{caller} needs Minari; run {install('minari')}") from None
    return minari


SpaceArrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class DatasetSpaces:
    """The spaces of a data set and the fields of a buffer that they are made of.

    Attributes:
        observation: Space of an observation.
        action: Space of an action.
        observed: The names of the fields of an observation, in dicts and tuples as in the space.
        acted: Those of an action.
    """

    observation: Any
    action: Any
    observed: Any
    acted: Any

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """The fields of an observation."""
        return tuple(leaves_of(self.observed))

    @property
    def action_fields(self) -> tuple[str, ...]:
        """The fields of an action."""
        return tuple(leaves_of(self.acted))

    def observations(self, arrays: SpaceArrays) -> Any:
        """Return the observations of an episode as Minari takes them.

        Args:
            arrays: The observation fields, arrays `(n, *shape)`.
        """
        return _nested(self.observed, self.observation, arrays)

    def actions(self, arrays: SpaceArrays) -> Any:
        """Return the actions of an episode as Minari takes them."""
        return _nested(self.acted, self.action, arrays)


def dataset_spaces(
    specs: Mapping[str, FieldSpec],
    observation_fields: Sequence[str],
    env: Any = None,
    stored: Spaces | None = None,
) -> DatasetSpaces:
    """Return the spaces of a data set of a buffer's steps.

    Args:
        specs: The buffer's typed fields.
        observation_fields: Those of an observation.
        env: An environment, or another object with its two spaces.
        stored: The buffer's spaces, which are taken without an environment. Without them the spaces
            are boxes with the bounds of each field's dtype.

    Raises:
        FieldError: The buffer lacks a field of the spaces, or has no observation or action.
    """
    spaces = stored if env is None else spaces_of(env)
    if spaces is None:
        return _boxes(specs, observation_fields)
    fields = {**spaces.fields_of(OBSERVATION), **spaces.fields_of(ACTION)}
    if lacking := [name for name in fields if name not in specs]:
        raise FieldError(
            f"the environment has {', '.join(map(repr, lacking))}, and the buffer has the fields "
            f"{', '.join(map(repr, specs)) or 'none'}; give the environment that was recorded, or "
            f"none"
        )
    for name, field in fields.items():
        _check_fits(specs[name], field)
    return DatasetSpaces(
        spaces.observation, spaces.action, spaces.tree(OBSERVATION), spaces.tree(ACTION)
    )


def _check_fits(spec: FieldSpec, field: SpaceField) -> None:
    if field.is_variable:
        raise FieldError(
            f"field {spec.name!r} is {spec}, part of a Sequence or Graph, which Minari does not "
            f"take; export to Parquet or JSON lines"
        )
    if spec.shape != field.shape or not np.can_cast(spec.dtype, field.dtype, "same_kind"):
        raise FieldError(
            f"field {spec.name!r} is {spec}, and the environment has "
            f"{field.dtype}{field.shape or ''} there; give the environment that was recorded, or "
            f"none"
        )


def _boxes(specs: Mapping[str, FieldSpec], observation_fields: Sequence[str]) -> DatasetSpaces:
    observed = tuple(observation_fields) or _named(specs, "obs")
    acted = _named(specs, "action")
    for kind, names in (("observation", observed), ("action", acted)):
        if not names:
            raise FieldError(
                f"no field is an {kind}; a buffer of `fields_from_env` has `obs` and `action`, and "
                f"this one has {', '.join(map(repr, specs)) or 'no typed fields'}"
            )
    (observation, named), (action, acts) = (
        _space("obs", observed, specs), _space("action", acted, specs)
    )  # fmt: skip
    return DatasetSpaces(observation, action, named, acts)


def _named(specs: Mapping[str, FieldSpec], name: str) -> tuple[str, ...]:
    if name in specs:
        return (name,)
    return tuple(field for field in specs if field.startswith(f"{name}_"))


def _space(name: str, fields: Sequence[str], specs: Mapping[str, FieldSpec]) -> tuple[Any, Any]:
    """Return a space of boxes, and the names of its fields as they are nested there."""
    from gymnasium import spaces

    boxes = {field: _box(field, specs[field]) for field in fields}
    if list(boxes) == [name]:
        return boxes[name], name
    keys = {field.removeprefix(f"{name}_"): field for field in boxes}
    return spaces.Dict({key: boxes[field] for key, field in keys.items()}), keys


def _box(name: str, spec: FieldSpec) -> Any:
    from gymnasium import spaces

    dtype = np.dtype(spec.dtype)
    if spec.is_variable or dtype.kind not in "fiub":
        raise FieldError(f"field {name!r} is {spec}; Minari takes numbers of a fixed shape")
    if dtype.kind == "b":
        return spaces.Box(0, 1, spec.shape, np.int8)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, spec.shape, dtype.type)
    bounds = np.iinfo(dtype)
    return spaces.Box(bounds.min, bounds.max, spec.shape, dtype.type)


def _nested(tree: Any, space: Any, arrays: SpaceArrays) -> Any:
    """Return the arrays of fields, nested as in a space, with the dtypes of the space."""
    if isinstance(tree, dict):
        return {key: _nested(part, space[key], arrays) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_nested(part, space[i], arrays) for i, part in enumerate(tree))
    if arrays[tree].dtype.kind == "U":
        return arrays[tree].tolist()
    return arrays[tree].astype(space.dtype, copy=False)


def dataset_folder(dataset_id: str) -> Path:
    """Return where Minari keeps a data set."""
    from minari.storage import get_dataset_path

    return Path(get_dataset_path(dataset_id))


def checked_dataset_id(dataset_id: Any) -> str:
    """Return the name of a data set.

    Raises:
        ArgumentError: Minari takes no such name.
    """
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise refused(
            dataset_id, "dataset_id", "a name of Minari, such as 'cartpole/recorded-v0'"
        ) from None
    return str(dataset_id)


class NewDataset:
    """A data set that is written by another name, and renamed at the end.

    Making it removes what exports of the same data set have left that were killed.

    Args:
        dataset_id: Its name; one that is there is replaced.

    Attributes:
        work_id: The name to write it by.
    """

    def __init__(self, dataset_id: str) -> None:
        from minari.dataset.minari_dataset import gen_dataset_id, parse_dataset_id

        space, name, version = parse_dataset_id(dataset_id)
        self._id, path = dataset_id, dataset_folder(dataset_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        pattern = re.compile(re.escape(f"{name}-partial-") + "([0-9a-f]{8})" + f"-v{version}")
        for entry in path.parent.iterdir():
            match = pattern.fullmatch(entry.name)
            mark = path.parent / f".{path.name}.partial-{match[1]}" if match else None
            if mark is not None and (not mark.exists() or is_ended(mark)):
                shutil.rmtree(entry, ignore_errors=True)
        # Minari makes the folder, so a file next to it is locked while this process lives.
        self._place = WorkPlace(path, Path.touch)
        mark_id = self._place.path.name.rpartition("-")[2]
        self.work_id = gen_dataset_id(space, f"{name}-partial-{mark_id}", version)

    def __enter__(self) -> "NewDataset":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(dataset_folder(self.work_id), ignore_errors=True)
        self._place.close()

    def finish(self) -> None:
        """Write its manifest, and give it its name."""
        work = dataset_folder(self.work_id)
        about = work / "data" / "metadata.json"
        known = json.loads(about.read_text("utf-8"))
        about.write_text(json.dumps({**known, "dataset_id": self._id}), "utf-8")
        counts = {"steps": known["total_steps"], "episodes": known["total_episodes"]}
        write_manifest(work, counts)
        put_in_place(work, dataset_folder(self._id))


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
            those of the data set. Without it, the spaces are `buffer.spaces`; if the buffer has
            none, boxes with the bounds of each field's dtype.
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
    with _environment(env) as environment:
        spaces = dataset_spaces(
            buffer.fields, buffer.observation_fields, environment, buffer.spaces
        )
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
def _environment(env: Any) -> Iterator[Any]:
    """Give an environment, made for this if only its id or spec is known."""
    if env is None or hasattr(env, "observation_space"):
        yield env
        return
    import gymnasium

    try:
        environment = gymnasium.make(env)
    except (gymnasium.error.Error, TypeError, ImportError) as error:
        raise FieldError(f"the environment {env!r} cannot be made: {error}") from None
    with environment:
        yield environment


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
        following = {NEXT + name for name in spaces.observation_fields}
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


def import_minari(
    dataset: Any,
    url: Database = None,
    name: str = "default",
    *,
    task_id: str | None = None,
    agent_id: str = "default",
    infos: Sequence[str] | None = None,
    prefix: str = "",
    on_conflict: Literal["error", "skip"] = "error",
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> ImportReport:
    """Store the episodes of a Minari data set in a buffer; a missing buffer is made.

    The buffer has the fields of `fields_from_env`, and a field for each of the `infos` that are
    numbers of one shape. A new buffer also has the spaces of the data set. The last observation of
    an episode is its final observation. If an import was interrupted, call it again: it continues,
    and no episode is stored twice.

    The data set is read once before the first episode is stored: if it is damaged, nothing is
    stored. A data set of `export_minari` is compared with its manifest.

    Args:
        dataset: A `MinariDataset`, the name of one in Minari's folder, or the path of one.
        url: The database; see `ReplayBuffer`.
        name: The buffer.
        task_id: Task of all episodes; by default the id of the environment, or the name of the data
            set.
        agent_id: Agent that acted.
        infos: Infos that become fields; by default all that are numbers of one shape.
        prefix: Text that is put before the ids of episodes, such as `run1/`.
        on_conflict: For other episodes of the buffer that have the ids: `error`, or `skip` to leave
            those of the data set out.
        on_progress: Function that is called after each episode with the number of steps so far,
            that number again, and the range of all steps.
        **settings: Settings of the buffer; see `ReplayBuffer`.

    Raises:
        ArgumentError: An argument is invalid.
        BufferConfigError: A setting is wrong.
        FieldError: A space has no fixed size, or the buffer has other fields.
        FileImportError: There is no such data set, it is damaged or incomplete, or the buffer has
            other episodes with its ids.
        InsufficientDataError: It has no episodes.
        MissingExtraError: Minari is not installed.
        StorageUnreachableError: The database does not answer.
        URLError: The URL cannot be used.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> from sqlbuffer.interchange import export_minari
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32", "action": "int64"})
        >>> columns = {"obs": [0, 1], "action": [0, 1], "terminated": [False, True]}
        >>> buffer.store_episode(columns, final={"obs": 2}).inserted
        2
        >>> dataset = export_minari(buffer, "example/imported-v0")
        >>> import_minari(dataset, "sqlite://").n_stored
        2
    """
    began_at = time.monotonic()
    on_progress = checked_progress(on_progress)
    ids = ImportIds.checked(prefix, on_conflict)
    if infos is not None:
        infos = checked_names(infos, "infos", "['velocity']", error=ArgumentError)
    minari = minari_package("import_minari()")
    dataset = _loaded(minari, dataset)
    with named_damage(dataset.id):
        task = task_id or (dataset.env_spec.id if dataset.env_spec else dataset.id)
        n_all = int(dataset.total_steps)
        specs = _info_specs(dataset)
    if infos is not None:
        if unknown := [name for name in infos if name not in specs]:
            raise FieldError(
                f"{dataset.id!r} has no info {unknown[0]!r} of numbers of one shape; it has "
                f"{', '.join(map(repr, specs)) or 'none'}"
            )
        specs = {name: specs[name] for name in infos}
    declared = fields_from_env(dataset)
    if double := set(specs) & set(declared["fields"]):
        raise FieldError(f"the infos have {min(double)!r}, and so have the spaces of the data set")
    declared["fields"] = {**declared["fields"], **specs}
    settings = {**declared, **settings}
    with ExitStack() as stack:
        buffer = found_buffer(url, name)
        if buffer is not None:
            buffer.close()
            settings.pop("spaces", None)  # an older buffer keeps its own, or has none
            buffer = stack.enter_context(ReplayBuffer(url, name, **settings))
        trial = buffer or stack.enter_context(ReplayBuffer("sqlite://", name, **declared))
        for _ in _encoded_episodes(dataset, n_all, tuple(specs), task, agent_id, trial, prefix):
            pass
        counts = ImportCounts()
        opened = stack.enter_context(import_target(buffer, url, name, settings, counts))
        for n_steps, batch in _encoded_episodes(
            dataset, n_all, tuple(specs), task, agent_id, opened, prefix
        ):
            stored = opened._writer.store(batch)
            counts.add(n_steps, stored, ids, dataset.id)
            if on_progress is not None:
                on_progress(counts.n_steps, counts.n_steps, range(n_all))
        target = f"{opened.name!r} in {opened.url}"
        return counts.report(dataset.id, target, time.monotonic() - began_at)


def _encoded_episodes(
    dataset: Any, n_all: int, infos: Sequence[str], task_id: str, agent_id: str,
    buffer: ReplayBuffer, prefix: str,
) -> Iterator[tuple[int, EncodedSteps]]:  # fmt: skip
    """Yield the number of steps of each episode, and the episode as a buffer stores it."""
    with named_damage(dataset.id):
        spaces = spaces_of(dataset)
        observed, acted = spaces.fields_of(OBSERVATION), spaces.fields_of(ACTION)
        n_steps = n_episodes = 0
        for episode in dataset.iterate_episodes():
            n = len(episode.rewards)
            observations = values_of_all(observed, episode.observations)
            columns = {
                **{name: values[:n] for name, values in observations.items()},
                **values_of_all(acted, episode.actions),
                **{name: _info(dataset, episode, name) for name in infos},
                "reward": np.asarray(episode.rewards, np.float64),
                "terminated": np.asarray(episode.terminations, np.bool_),
                "truncated": np.asarray(episode.truncations, np.bool_),
            }
            yield n, buffer._writer.encoded_episode(
                columns, task_id=task_id, group_id=None, parent_id=None,
                keys={"agent_id": agent_id},
                episode_id=f"{prefix}{dataset.id}/{episode.id}", episode_reward=None,
                casting="same_kind",
                final={name: values[-1] for name, values in observations.items()}, meta={},
            )  # fmt: skip
            n_steps, n_episodes = n_steps + n, n_episodes + 1
    if (n_steps, n_episodes) != (n_all, dataset.total_episodes):
        raise FileImportError(
            f"{dataset.id} has {n_episodes:,} episodes with {n_steps:,} steps, and its metadata "
            f"says {dataset.total_episodes:,} with {n_all:,}; {AGAIN}"
        )


def _loaded(minari: Any, dataset: Any) -> Any:
    """Return a data set, by its name or path, whose files are those of its export if it was one;
    see `import_minari`.
    """
    if isinstance(dataset, (str, os.PathLike)):
        path = checked_path(dataset, "dataset", "the name or the path of a data set") / "data"
        if not path.is_dir():
            path = dataset_folder(str(dataset)) / "data"
        if not path.is_dir():
            raise FileImportError(
                f"there is no Minari data set {str(dataset)!r} in {dataset_folder('')}; give its "
                f"path, or set MINARI_DATASETS_PATH"
            )
        manifest = verified_manifest(path.parent)
        with named_damage(path):
            dataset = minari.MinariDataset(path)
        if manifest is not None:
            manifest.check(
                {"steps": int(dataset.total_steps), "episodes": int(dataset.total_episodes)}
            )
    elif not isinstance(dataset, minari.MinariDataset):
        what = "a MinariDataset, the name of one in Minari's folder, or the path of one"
        raise refused(dataset, "dataset", what)
    else:
        verified_manifest(Path(dataset.storage.data_path).parent)
    if not dataset.total_episodes:
        raise InsufficientDataError(
            f"{dataset.id} has no episodes; its writer may have been interrupted"
        )
    return dataset


def _info(dataset: Any, episode: Any, name: str) -> NDArray[Any]:
    values = (episode.infos or {}).get(name)
    if values is None or len(values) != len(episode.rewards) + 1:
        raise FieldError(
            f"episode {episode.id} of {dataset.id!r} has {0 if values is None else len(values)} "
            f"values of the info {name!r} for {len(episode.rewards)} steps; the first episode has "
            f"one more than steps"
        )
    return np.asarray(values)[1:]


def _info_specs(dataset: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the infos of the first episode that are numbers of one shape."""
    specs = {}
    first = next(iter(dataset.iterate_episodes()))
    for name, values in (first.infos or {}).items():
        array = np.array(None) if isinstance(values, dict) else np.asarray(values)
        if array.dtype.kind in "fiub" and array.shape[:1] == (len(first.rewards) + 1,):
            specs[name] = (str(array.dtype), array.shape[1:])
    return specs
