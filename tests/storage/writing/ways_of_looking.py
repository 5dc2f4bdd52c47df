"""Every way of looking at a buffer, compared with the model."""

import json
import math

import numpy as np
from sqlalchemy import Connection, select, text
from sqlalchemy.orm import Session

from sqlbuffer import QueryBuilder, RandomSampler, ReplayBuffer, orm
from tests.storage.writing.buffer_model import Model, Step

ALL = 1_000  # more than any buffer of these tests holds
# What each condition matches: once for the database, and once for the model.
OF_JSON = [
    (QueryBuilder().gte("exp_meta.step", 2), lambda model, row: row.step >= 2),
    (QueryBuilder().eq("exp_meta.task_id", "a"), lambda model, row: row.task == "a"),
    (
        QueryBuilder().gt("exp_data.reward_t", 0.75),
        lambda model, row: (model.value(row, "reward") or 0) > 0.75,
    ),
    (QueryBuilder().gte("exp_data.state.x", 15), lambda model, row: row.number >= 15),
]
OF_FIELDS = [*OF_JSON[:3], (QueryBuilder().gte("level", 5), lambda _, row: row.number % 10 >= 5)]

VIEW = (
    "seq, id, task_id, episode_id, step, model_version, session_id, terminated, reward, advantage, "
    "value, extra, state"
)


def plain(value):
    """Return a value that equals itself."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def seen(model: Model, row: Step, *, is_typed: bool):
    """Return what every reader of rows should show of a step."""
    return tuple(
        plain(value)
        for value in (
            row.seq, row.id, row.task, row.episode, row.step, row.version, row.session,
            row.terminated, model.value(row, "reward"), model.value(row, "adv"),
            model.value(row, "value"), model.value(row, "extra"),
            row.state(is_typed),
        )
    )  # fmt: skip


def shown(row):
    """Return the same of a `DataRow`."""
    meta, data = row.exp_meta, row.exp_data
    return tuple(
        plain(value)
        for value in (
            row.seq, row.id, meta.task_id, meta.episode_id, meta.step, meta.model_version,
            meta.session_id, data.terminated, data.reward_t, data.adv_t, data.v_t, data.extra,
            data.state,
        )
    )  # fmt: skip


def without_nan(rows):
    """Return rows as columns show them, where a reward of NaN is null."""
    return [tuple(None if value == "nan" else value for value in row) for row in rows]


class Looks:
    """Looks at a buffer in every way, and compares what it sees.

    Args:
        buffer: The buffer.
        model: What it should be.
        connection: A connection of somebody else, for plain SQL.
        session: A session of the ORM.
    """

    def __init__(
        self, buffer: ReplayBuffer, model: Model, connection: Connection, session: Session
    ) -> None:
        self.buffer, self.model = buffer, model
        self.connection, self.session = connection, session
        self.is_typed = bool(buffer.fields)
        self.rows = [model.rows[seq] for seq in sorted(model.rows)]
        self.expected = [seen(model, row, is_typed=self.is_typed) for row in self.rows]

    def compare(self, condition: int) -> None:
        """Compare what is seen with the model; one of the conditions each time."""
        self.rows_in_order()
        self.pages()
        self.matching(*(OF_FIELDS if self.is_typed else OF_JSON)[condition])
        self.tasks()
        self.views()
        self.mapped_classes()
        self.peeks()
        if self.model.max_use is None:
            self.passes()
            self.trajectories()
            self.one_batch_of_all()

    def rows_in_order(self) -> None:
        n = len(self.rows)
        assert (len(self.buffer), self.buffer.size()) == (n, n), "len() and size()"
        found = list(self.buffer.get_all())
        assert [shown(row) for row in found] == self.expected, "get_all()"
        for row, expected in zip(found, self.rows, strict=True):
            if not self.is_typed:
                np.testing.assert_array_equal(row.exp_data.actions, expected.actions, "actions")

    def pages(self) -> None:
        assert [shown(row) for row in self.buffer] == self.expected, "iteration"
        n_pages = len(self.rows) // 7 + 1
        pages = [self.buffer.get_paginated(page, 7) for page in range(1, n_pages + 1)]
        assert [shown(row) for page in pages for row in page] == self.expected, "get_paginated()"

    def matching(self, builder, matches) -> None:
        tree = builder.build()
        expected = [
            line
            for row, line in zip(self.rows, self.expected, strict=True)
            if matches(self.model, row)
        ]
        assert self.buffer.size(tree) == len(expected), f"size({tree})"
        found = [shown(row) for row in self.buffer.get_all(tree)]
        assert found == expected, f"get_all({tree})"
        by_hand = self.connection.exec_driver_sql(self.buffer.sql(tree).replace("%", "%%"))
        assert sorted(row[0] for row in by_hand) == [row[0] for row in expected], "sql()"

    def tasks(self) -> None:
        for task in "abc":
            rows = self.buffer.get_by_task_id(task)
            expected = [row for row in self.expected if row[2] == task]
            assert sorted(shown(row) for row in rows) == expected, f"get_by_task_id({task!r})"
            order = [(row.exp_meta.episode_id or "", row.exp_meta.step) for row in rows]
            assert [step for _, step in order] == [
                step
                for key in dict.fromkeys(key for key, _ in order)
                for step in sorted(step for other, step in order if other == key)
            ], f"order of get_by_task_id({task!r})"

    def select(self, columns: str, view: str, order: str):
        statement = f"SELECT {columns} FROM {view} WHERE buffer = :buffer ORDER BY {order}"
        return [tuple(r) for r in self.connection.execute(text(statement), {"buffer": self.name})]

    @property
    def name(self) -> str:
        return self.buffer.name

    def views(self) -> None:
        found = [
            (*row[:7], None if row[7] is None else bool(row[7]), *row[8:11], *map(loaded, row[11:]))
            for row in self.select(VIEW, "v_experiences", "seq")
        ]
        assert found == without_nan(self.expected), "v_experiences"
        if self.is_typed:
            levels = [loaded(fields) for (fields,) in self.select("fields", "v_experiences", "seq")]
            assert levels == [{"level": row.number % 10} for row in self.rows], "fields"
        columns = "task_id, status, length, episode_return, reward, first_seq, last_seq"
        listed = self.select(f"episode_id, {columns}, model_version", "v_episodes", "episode_id")
        assert listed == self.listed_episodes(), "v_episodes"
        tasks = self.select("task_id, steps, total_reward", "v_tasks", "task_id")
        assert tasks == self.summed_tasks(), "v_tasks"
        assert self.select("rows", "v_buffers", "buffer") == [(len(self.rows),)], "v_buffers"
        barred = [seq for (seq,) in self.select("seq", "v_quarantine", "seq")]
        assert barred == sorted(self.model.quarantined), "v_quarantine"
        if self.buffer.alpha is not None:
            found = self.select("seq, priority", "v_priorities", "seq")
            assert found == sorted(self.model.priorities.items()), "v_priorities"

    def listed_episodes(self):
        found = []
        for key, it in sorted(self.model.episodes.items()):
            is_open = it.status == "open"
            known = (it.length, it.returned, it.reward, it.first_seq, it.last_seq)
            shown = (None,) * len(known) if is_open else known
            found.append((key, it.task, it.status, *shown, it.version))
        return found

    def summed_tasks(self):
        found = []
        for task in sorted({row.task for row in self.rows}):
            rewards = [self.model.value(row, "reward") for row in self.rows if row.task == task]
            given = [reward for reward in rewards if reward is not None and reward == reward]
            found.append((task, len(rewards), sum(given) if given else None))
        return found

    def mapped_classes(self) -> None:
        self.session.expire_all()
        row = orm.Experience
        rows = self.session.scalars(select(row).where(row.buffer == self.name).order_by(row.seq))
        found = [
            (
                one.seq, one.id, one.task_id, one.episode_id, one.step, one.model_version,
                one.session_id, one.terminated, one.reward, one.advantage, one.value, one.extra,
                one.state,
            )
            for one in rows
        ]  # fmt: skip
        assert found == without_nan(self.expected), "orm.Experience"
        task = orm.Task
        tasks = self.session.scalars(
            select(task).where(task.buffer == self.name).order_by(task.task_id)
        )
        found = [(one.task_id, one.n_steps, one.total_reward) for one in tasks]
        assert found == self.summed_tasks(), "orm.Task"
        episode = orm.Episode
        episodes = self.session.scalars(
            select(episode).where(episode.buffer == self.name).order_by(episode.episode_id)
        )
        found = [(one.episode_id, one.status, one.episode_return) for one in episodes]
        expected = [(one[0], one[2], one[4]) for one in self.listed_episodes()]
        assert found == expected, "orm.Episode"
        self.session.rollback()

    def peeks(self) -> None:
        found = sorted(shown(row) for row in self.buffer.peek(ALL))
        assert found == self.expected, "peek()"

    def passes(self) -> None:
        batches = [*self.buffer.loader("step", 5, epochs=1, seed=len(self.rows))]
        found = [row for batch in batches for row in steps_in(batch, self.is_typed)]
        assert sorted(found) == self.arrays_of(self.model.eligible()), "loader('step', epochs=1)"

    def one_batch_of_all(self) -> None:
        expected = self.arrays_of(self.model.eligible())
        if expected:
            batch = self.buffer.sample_arrays(len(expected), sampler=RandomSampler())
            assert sorted(steps_in(batch, self.is_typed)) == expected, "sample_arrays()"

    def arrays_of(self, rows):
        """Return (seq, reward, terminated, bytes of each field) of rows, in order."""
        return sorted(
            (
                row.seq,
                number(self.model.value(row, "reward")),
                bool(row.terminated),
                {name: array.tobytes() for name, array in row.arrays.items()}
                if self.is_typed
                else {},
            )
            for row in rows
        )

    def trajectories(self) -> None:
        found = {}
        for batch in self.buffer.loader("trajectory", 3, epochs=1, seed=len(self.rows)):
            for i, key in enumerate(batch.info["episode"].tolist()):
                n = int(batch.lens[i])
                assert batch.mask[i].tolist() == [True] * n + [False] * (batch.mask.shape[1] - n)
                episode = {name: array[i] for name, array in batch.items()}
                end = (plain(batch.info["return"][i]), plain(batch.info["episode_reward"][i]))
                if self.is_typed:
                    end += (bool(batch.has_final[i]), batch.final_obs[i].tobytes())
                found[key] = ([step_at(episode, t, self.is_typed) for t in range(n)], end)
        expected = {
            key: ([one[1:] for one in self.arrays_of(steps)], self.end_of(key))
            for key, steps in self.model.whole_episodes().items()
        }
        assert found == expected, "loader('trajectory', epochs=1)"

    def end_of(self, key: str):
        """Return the return of an episode, its reward, and its final observation."""
        episode = self.model.episodes[key]
        end = (
            episode.returned,
            episode.returned if episode.reward is None else episode.reward,
        )
        if not self.is_typed:
            return end
        obs = [0, 0] if episode.final is None else [episode.final, 1]
        return (*end, episode.final is not None, np.array(obs, np.float32).tobytes())


def loaded(value):
    return json.loads(value) if isinstance(value, str) else value


def number(reward):
    return "nan" if reward is None or math.isnan(reward) else float(np.float32(reward))


def steps_in(batch, is_typed):
    steps = [{name: array[i] for name, array in batch.items()} for i in range(batch.n_rows)]
    for seq, step in zip(batch.info["seq"].tolist(), steps, strict=True):
        yield (seq, *step_of(step, is_typed))


def step_at(episode, t, is_typed):
    whole = ("mask", "lens", "has_final", "final_obs")
    return step_of(
        {name: array[t] for name, array in episode.items() if name not in whole}, is_typed
    )


def step_of(step, is_typed):
    """Return reward, terminated, and the bytes of each field of a step in a batch."""
    arrays = {name: step[name] for name in ("obs", "big", "tokens", "level")} if is_typed else {}
    if is_typed:
        arrays["tokens"] = arrays["tokens"][: step["tokens_lens"]]
    raw = {name: array.tobytes() for name, array in arrays.items()}
    reward = float(step["reward"])
    return ("nan" if math.isnan(reward) else reward, bool(step["terminated"]), raw)
