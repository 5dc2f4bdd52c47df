"""Store the episodes of a Minari data set in a buffer."""

import os
import time
from collections.abc import Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import checked_buffer_name
from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_names
from sqlbuffer.copying.buffer_copy import OnProgress, checked_progress
from sqlbuffer.errors import FieldError, FileImportError, InsufficientDataError
from sqlbuffer.fields.env_fields import fields_from_env, paths_of
from sqlbuffer.interchange.import_report import ImportCounts, ImportReport
from sqlbuffer.interchange.minari.minari_package import minari_package
from sqlbuffer.interchange.minari.new_dataset import dataset_folder
from sqlbuffer.storage.database.engine import resolve_url
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
        FieldError: A space has no fixed size, or the buffer has other fields.
        FileNotFoundError: There is no such data set.
        FileImportError: The data set is damaged.
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
    checked_buffer_name(name)
    on_progress = checked_progress(on_progress)
    resolve_url(url)
    if infos is not None:
        infos = checked_names(infos, "infos", "['velocity']")
    minari = minari_package("import_minari()")
    dataset = _loaded(minari, dataset)
    task = task_id or (dataset.env_spec.id if dataset.env_spec else dataset.id)
    observed = paths_of("obs", dataset.observation_space)
    acted = paths_of("action", dataset.action_space)
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
    counts = ImportCounts()
    with ReplayBuffer(url, name, **{**declared, **settings}) as buffer:
        for episode in dataset.iterate_episodes():
            n = len(episode.rewards)
            observations = _values(observed, episode.observations)
            columns = {
                **{name: values[:n] for name, values in observations.items()},
                **_values(acted, episode.actions),
                **{name: _info(dataset, episode, name) for name in specs},
                "reward": np.asarray(episode.rewards, np.float64),
                "terminated": np.asarray(episode.terminations, np.bool_),
                "truncated": np.asarray(episode.truncations, np.bool_),
            }
            stored = buffer.store_episode(
                columns, task_id=task, agent_id=agent_id, episode_id=f"{dataset.id}/{episode.id}",
                final={name: values[-1] for name, values in observations.items()},
            )  # fmt: skip
            counts.n_steps += n
            counts.n_stored += stored.inserted
            counts.n_duplicates += stored.duplicates
            counts.n_conflicts += stored.conflicts
            if on_progress is not None:
                on_progress(counts.n_steps, counts.n_steps, range(dataset.total_steps))
        return ImportReport(
            dataset.id, f"{buffer.name!r} in {buffer.url}", counts.n_steps, counts.n_stored,
            counts.n_duplicates, counts.n_conflicts, False, time.monotonic() - began_at,
        )  # fmt: skip


def _loaded(minari: Any, dataset: Any) -> Any:
    """Return a data set, by its name or path; see `import_minari`."""
    if not isinstance(dataset, (str, os.PathLike)):
        return dataset
    path = Path(dataset) / "data"
    if not path.is_dir():
        path = dataset_folder(str(dataset)) / "data"
    if not path.is_dir():
        raise FileNotFoundError(
            f"there is no Minari data set {str(dataset)!r} in {dataset_folder('')}; give its path, "
            f"or set MINARI_DATASETS_PATH"
        )
    try:
        found = minari.MinariDataset(path)
    except (ValueError, KeyError, AssertionError) as error:
        raise FileImportError(f"{path} cannot be read: {type(error).__name__}: {error}") from None
    if not found.total_episodes:
        raise InsufficientDataError(f"{path} has no episodes; its writer may have been interrupted")
    return found


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
    if not dataset.total_episodes:
        return {}
    found = {}
    first = next(iter(dataset.iterate_episodes()))
    for name, values in (first.infos or {}).items():
        array = np.array(None) if isinstance(values, dict) else np.asarray(values)
        if array.dtype.kind in "fiub" and array.shape[:1] == (len(first.rewards) + 1,):
            found[name] = (str(array.dtype), array.shape[1:])
    return found
