"""A buffer with chunks that takes rows, so that a test of rows is one of chunks as well."""

from collections.abc import Iterable
from typing import Any

import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer, StoreResult
from sqlbuffer.steps import PAYLOADS


class TypedBuffer(ReplayBuffer):
    """A buffer with a typed field: `number`, which is the step number of each row.

    What `extend` takes is stored of a row: not `task_name`, `pre_agent`, `adv_t`, `v_t` and the
    time.
    """

    def __init__(self, url: Any = None, name: str = "default", **settings: Any) -> None:
        super().__init__(url, name, **{"fields": {"number": "int64"}, **settings})

    def store_batch(
        self,
        data_batch: Iterable[DataRow],
        model_version: int | None = None,
        *,
        session_id: str | None = None,
        priority: Any = None,
    ) -> StoreResult:
        """Store rows as columns."""
        rows = list(data_batch)
        metas, data = [row.exp_meta for row in rows], [row.exp_data for row in rows]
        columns: dict[str, Any] = {name: [getattr(own, name) for own in data] for name in PAYLOADS}
        columns["number"] = [meta.step for meta in metas]
        for name, attribute in (("reward", "reward_t"), ("terminated", "terminated")):
            if all(getattr(own, attribute) is not None for own in data):
                columns[name] = [getattr(own, attribute) for own in data]
        versions = [meta.model_version for meta in metas]
        sessions = [meta.session_id for meta in metas]
        return self.extend(
            columns,
            id=[row.id for row in rows],
            task_id=[meta.task_id for meta in metas],
            agent_id=[meta.agent_id for meta in metas],
            step=[meta.step for meta in metas],
            model_version=model_version if None in versions else versions,
            session_id=session_id if None in sessions else sessions,
            priority=priority,
        )

    def store(self, data: DataRow, *, priority: float | None = None) -> StoreResult:
        """Store one row as columns."""
        return self.store_batch([data], priority=priority)

    def add(self, /, **fields: Any) -> StoreResult:
        """Store one row, given by its fields, as columns."""
        names = {"reward": "reward_t"}
        given = {names.get(name, name): value for name, value in fields.items()}
        meta = {"task_id": "default", "agent_id": "default", "step": 0, "execute_time": 0.0}
        meta |= {name: given.pop(name) for name in list(given) if name in ExpMeta.__annotations__}
        id_, priority = given.pop("id", None), given.pop("priority", None)
        own_id = {} if id_ is None else {"id": id_}
        data = Experience(**{"state": None, "actions": [], **given})
        return self.store(
            DataRow(ExpMeta(task_name=None, **meta), data, **own_id), priority=priority
        )


both_layouts = pytest.mark.parametrize(
    "make_buffer", [ReplayBuffer, TypedBuffer], ids=["rows", "chunks"]
)


def table_of(buffer: ReplayBuffer) -> str:
    """Return what plain SQL deletes the steps of a buffer from."""
    return "v_experiences" if buffer.fields else "experiences"
