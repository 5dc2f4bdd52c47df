"""End episodes, and give them rewards and values, from any process."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from sqlbuffer.checks import checked_choice, checked_instance, checked_integer, checked_items
from sqlbuffer.encoding.episode_records import encode_meta, pack_final
from sqlbuffer.encoding.records import encode_key
from sqlbuffer.errors import ArgumentError
from sqlbuffer.storage.episode_changes import EpisodeChange, annotate_stored, end_stored
from sqlbuffer.storage.labels.values import checked_reward
from sqlbuffer.storage.store import BufferStore

EndStatus = Literal["complete", "aborted"]
MAX_EPISODES = 100_000


class EpisodeChanges:
    """Ends and annotates stored episodes.

    Args:
        store: The buffer.
    """

    def __init__(self, store: BufferStore) -> None:
        self._store = store

    def end(
        self,
        episode_ids: Sequence[str],
        task_ids: Sequence[str | None] | None,
        status: Any,
        rewards: Any,
        metas: Any,
        finals: Any,
        *,
        must_exist: bool = False,
    ) -> int:
        """End episodes; return how many were not ended so before."""
        checked_choice(status, "status", get_args(EndStatus))
        changes = self._changes(episode_ids, task_ids, rewards, metas, finals, single=must_exist)
        self._store.own_writes.store()
        return end_stored(self._store, status, changes, must_exist=must_exist)

    def annotate(
        self,
        episode_ids: Sequence[str],
        task_ids: Sequence[str | None] | None,
        rewards: Any,
        metas: Any,
        version: int | None = None,
        *,
        must_exist: bool = False,
    ) -> int:
        """Give episodes rewards and values; return how many there were."""
        changes = self._changes(episode_ids, task_ids, rewards, metas, single=must_exist)
        if rewards is None and metas is None:
            call = "annotate_episode() needs reward=... or meta={...}"
            many = "annotate_episodes() needs rewards=[...] or metas=[...]"
            raise ArgumentError(call if must_exist else many)
        if version is not None:
            version = checked_integer(version, "version", 1)
        self._store.own_writes.store()
        return annotate_stored(self._store, changes, version, must_exist=must_exist)

    def _changes(
        self,
        episode_ids: Any,
        task_ids: Any,
        rewards: Any,
        metas: Any,
        finals: Any = None,
        *,
        single: bool,
    ) -> list[EpisodeChange]:
        prefix, ending = ("", "") if single else ("each of ", "s")

        def name(argument: str) -> str:
            return f"{prefix}{argument}{ending}"

        ids = checked_items(
            episode_ids, "episode_ids", "a list of ids such as ['e1']", MAX_EPISODES
        )
        n = len(ids)
        tasks = _each(task_ids, "task_ids", "a list of ids such as ['t1']", n)
        specs = self._store.info.config.fields.meta
        layout = self._store.observation_layout
        columns = zip(
            ids,
            tasks,
            _each(rewards, "rewards", "a list of numbers, one for each episode", n),
            _each(metas, "metas", "a list of dicts, one for each episode", n),
            _each(finals, "finals", "a list of observations, one for each episode", n),
            strict=True,
        )
        return [
            EpisodeChange(
                encode_key(key, name("episode_id")),
                None if task is None else encode_key(task, name("task_id")),
                checked_reward(reward, name("reward")),
                None
                if meta is None
                else encode_meta(_checked_dict(meta, name("meta")) or {}, specs, "same_kind"),
                pack_final(layout, _checked_dict(final, name("final")), "same_kind"),
            )
            for key, task, reward, meta, final in columns
        ]


def _checked_dict(value: Any, name: str) -> Mapping[str, Any] | None:
    """Return a dict, or None if there is none."""
    if value is None:
        return None
    checked: Mapping[str, Any] = checked_instance(value, name, Mapping, "a dict")
    return checked


def _each(values: Any, name: str, expected: str, n: int) -> Sequence[Any]:
    """Return a value for each of n episodes; None for each where none are given."""
    if values is None:
        return [None] * n
    if hasattr(values, "tolist"):
        values = values.tolist()
    listed = checked_items(values, name, expected, MAX_EPISODES)
    if len(listed) != n:
        raise ArgumentError(
            f"{name} has {len(listed)} values for {n} episode_ids; give one for each"
        )
    return listed
