"""Store the episodes of a Minari data set in a buffer."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_names, checked_path, refused
from sqlbuffer.copying.buffer_copy import OnProgress, checked_progress
from sqlbuffer.errors import ArgumentError, FieldError, FileImportError, InsufficientDataError
from sqlbuffer.fields.env_fields import fields_from_env, paths_of
from sqlbuffer.front.step_encodings import Batch
from sqlbuffer.interchange.buffer_opening import found_buffer, import_target
from sqlbuffer.interchange.import_report import ImportCounts, ImportReport
from sqlbuffer.interchange.manifest import AGAIN, named_damage, verified_manifest
from sqlbuffer.interchange.minari.minari_package import minari_package
from sqlbuffer.interchange.minari.new_dataset import dataset_folder
from sqlbuffer.storage.database.urls import Database

Paths = dict[str, tuple[Any, ...]]


def import_minari(
    dataset: Any,
    url: Database = None,
    name: str = "default",
    *,
    task_id: str | None = None,
    agent_id: str = "default",
    infos: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> ImportReport:
    """Store the episodes of a Minari data set in a buffer; a missing buffer is made.

    The buffer has the fields of `fields_from_env`, and a field for each of the `infos` that are
    numbers of one shape. The last observation of an episode is its final observation. If an import
    was interrupted, call it again: it continues, and no episode is stored twice.

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
        on_progress: Function that is called after each episode with the number of steps so far,
            that number again, and the range of all steps.
        **settings: Settings of the buffer; see `ReplayBuffer`.

    Raises:
        ArgumentError: An argument is invalid.
        BufferConfigError: A setting is wrong.
        FieldError: A space has no fixed size, or the buffer has other fields.
        FileImportError: There is no such data set, or it is damaged or incomplete.
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
            buffer = stack.enter_context(ReplayBuffer(url, name, **settings))
        trial = buffer or stack.enter_context(ReplayBuffer("sqlite://", name, **declared))
        for _ in _encoded_episodes(dataset, n_all, tuple(specs), task, agent_id, trial):
            pass
        counts = ImportCounts()
        opened = stack.enter_context(import_target(buffer, url, name, settings, counts))
        for n_steps, batch in _encoded_episodes(
            dataset, n_all, tuple(specs), task, agent_id, opened
        ):
            stored = opened._writer.store(batch)
            counts.n_steps += n_steps
            counts.n_stored += stored.inserted
            counts.n_duplicates += stored.duplicates
            counts.n_conflicts += stored.conflicts
            if on_progress is not None:
                on_progress(counts.n_steps, counts.n_steps, range(n_all))
        return ImportReport(
            dataset.id, f"{opened.name!r} in {opened.url}", counts.n_steps, counts.n_stored,
            counts.n_duplicates, counts.n_conflicts, False, time.monotonic() - began_at,
        )  # fmt: skip


def _encoded_episodes(
    dataset: Any, n_all: int, infos: Sequence[str], task_id: str, agent_id: str,
    buffer: ReplayBuffer,
) -> Iterator[tuple[int, Batch]]:  # fmt: skip
    """Yield the number of steps of each episode, and the episode as a buffer stores it.

    Raises:
        FileImportError: An episode is damaged or missing.
    """
    with named_damage(dataset.id):
        observed = paths_of("obs", dataset.observation_space)
        acted = paths_of("action", dataset.action_space)
        n_steps = n_episodes = 0
        for episode in dataset.iterate_episodes():
            n = len(episode.rewards)
            observations = _values(observed, episode.observations)
            columns = {
                **{name: values[:n] for name, values in observations.items()},
                **_values(acted, episode.actions),
                **{name: _info(dataset, episode, name) for name in infos},
                "reward": np.asarray(episode.rewards, np.float64),
                "terminated": np.asarray(episode.terminations, np.bool_),
                "truncated": np.asarray(episode.truncations, np.bool_),
            }
            yield n, buffer._writer.encoded_episode(
                columns, task_id=task_id, keys={"agent_id": agent_id},
                episode_id=f"{dataset.id}/{episode.id}", episode_reward=None, casting="same_kind",
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


def _values(paths: Paths, value: Any) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(reduce(getitem, path, value)) for name, path in paths.items()}


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
    found = {}
    first = next(iter(dataset.iterate_episodes()))
    for name, values in (first.infos or {}).items():
        array = np.array(None) if isinstance(values, dict) else np.asarray(values)
        if array.dtype.kind in "fiub" and array.shape[:1] == (len(first.rewards) + 1,):
            found[name] = (str(array.dtype), array.shape[1:])
    return found
