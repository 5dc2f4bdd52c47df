"""Episodes that are ended, annotated and deleted by their ids, and states of a buffer."""

import threading

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import ArgumentError, FieldError
from tests.support.sql import run

LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}


@pytest.fixture(params=LAYOUTS)
def buffer(buffer_url, request):
    with ReplayBuffer(buffer_url, **LAYOUTS[request.param]) as buffer:
        yield buffer


def append(buffer, episode, *rewards, task=None):
    columns = {"obs" if buffer.fields else "state": [*rewards], "reward": [*rewards]}
    return buffer.extend(columns, episode_id=episode, task_id=task or episode)


def episodes(url):
    listed = "SELECT episode_id, status, length, episode_return, meta FROM v_episodes ORDER BY 1"
    return [
        (key, status, length, total, None if meta is None else str(meta).count("level"))
        for key, status, length, total, meta in run(url, listed)
    ]


def test_steps_are_appended_until_their_episode_is_ended(buffer_url):
    with ReplayBuffer(buffer_url, fields={"obs": "float32"}) as buffer:
        for rewards in ((1.0, 2.0), (3.0,)):
            append(buffer, "a", *rewards)
        append(buffer, "b", 5.0)
        assert buffer.end_episodes(["a", "none"], metas=[{"level": 1}, {}]) == 1
        assert episodes(buffer_url)[0] == ("a", "complete", 3, 6.0, 1)
        assert episodes(buffer_url)[1][1] == "open"
        assert buffer.end_episodes(["a"]) == 0
        assert (
            buffer.annotate_episodes(
                ["b", "a"], None, metas=[{"level": 1}, {"level": 2, "level_": 3}]
            )
            == 2
        )
        assert [episode[4] for episode in episodes(buffer_url)] == [2, 1]


@pytest.mark.each_value
def test_deleted_episodes_take_their_steps_along(buffer, buffer_url):
    for episode in ("a", "b", "c"):
        buffer.store_episode(
            {"obs" if buffer.fields else "state": [1, 2], "reward": [1.0, 2.0]}, episode_id=episode
        )
    append(buffer, "open", 4.0)
    assert buffer.delete_episodes(["b", "open", "none"]) == 2
    assert {row.exp_meta.task_id for row in buffer} == {"a", "c"}
    assert len(buffer) == 4
    assert [key for key, *_ in episodes(buffer_url)] == ["a", "b", "c"]
    assert buffer.delete_episodes(["a"], task_ids=["c"]) == 0
    append(buffer, "a", 1.0, task="other")
    with pytest.raises(FieldError, match=r"2 tasks have .*'a', 'other'.*name its task"):
        buffer.delete_episodes(["c", "a"])
    assert buffer.delete_episodes(["a"], task_ids=["other"]) == 1
    append(buffer, "open", 6.0)
    assert len(buffer) == 5


def test_in_a_transaction_they_are_undone_with_it(buffer):
    append(buffer, "a", 1.0)

    def work(tx):
        assert tx.delete_episodes(["a"]) == 1
        append(tx, "b", 2.0)
        assert tx.end_episodes(["b"]) == 1
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        buffer.transaction(lambda tx: work(_Tx(tx)))
    assert [row.exp_meta.task_id for row in buffer] == ["a"]


class _Tx:
    """A transaction with the fields of its buffer."""

    def __init__(self, tx):
        self._tx, self.fields = tx, tx.buffer.fields

    def __getattr__(self, name):
        return getattr(self._tx, name)


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda b: b.end_episodes("a"), ArgumentError),
        (lambda b: b.delete_episodes(None), ArgumentError),
        (lambda b: b.delete_episodes(["a"], task_ids=[]), ArgumentError),
        (lambda b: b.annotate_episodes(["a"], None, metas=[]), ArgumentError),
        (lambda b: b.annotate_episodes(["a"], None, metas=[{"x": object()}]), FieldError),
        (lambda b: b.delete_episodes([3]), FieldError),
        (lambda b: b.snapshot(3), ArgumentError),
        (lambda b: b.snapshot(len, documents="a"), ArgumentError),
        (lambda b: b.documents.get_many("a"), ArgumentError),
        (lambda b: b.documents.put_many([1]), ArgumentError),
        (lambda b: b.documents.put_many({"a": b"x"}), FieldError),
        (lambda b: b.documents.delete_many("a"), ArgumentError),
    ],
)
def test_odd_arguments_are_refused_by_name(buffer, call, error):
    with pytest.raises(error):
        call(buffer)


def test_a_snapshot_sees_one_state(buffer):
    append(buffer, "a", 1.0)
    buffer.documents.put_many({"one": 1, "it's": [2]})

    def elsewhere():
        append(buffer, "b", 2.0)
        buffer.documents.put("one", 5)
        buffer.delete_episodes(["a"])

    def look(view):
        before = view.deletions
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert view.deletions == before
        assert [row.exp_meta.task_id for row in view.get_paginated(1, 9)] == ["a"]
        return view.documents.get("one").value, {k: d.value for k, d in view.prefetched.items()}

    found = buffer.snapshot(look, documents=["one", "it's", "none"])
    assert found == (1, {"one": 1, "it's": [2]})
    assert buffer.documents.get("one").value == 5
    n_deletions = buffer.snapshot(lambda view: view.deletions)
    buffer.delete_episodes(["b"])
    assert buffer.snapshot(lambda view: view.deletions) > n_deletions


def test_several_documents_are_one_statement(buffer):
    documents = buffer.documents
    documents.put_many({f"page/{n}": [n] for n in range(12)} | {"other": None})
    documents.put_many({"page/3": ["new"]})
    found = documents.get_many(["page/3", "page/10", "missing"])
    assert {key: (own.value, own.version) for key, own in found.items()} == {
        "page/3": (["new"], 2), "page/10": ([10], 1),
    }  # fmt: skip
    assert len(documents.get_many(prefix="page/1")) == 3
    assert documents.delete_many([*found, "missing"]) == 2
    assert len(documents.keys()) == 11


def test_locked_documents_come_with_the_number_of_deletions(buffer):
    buffer.documents.put("a", 1)
    append(buffer, "e", 1.0)

    def work(tx):
        found, before = tx.locked(["a", "b"])
        tx.delete_episodes(["e"])
        return {key: own.value for key, own in found.items()}, tx.locked([])[1] - before

    found, n_deletions = buffer.transaction(work)
    assert found == {"a": 1}
    assert n_deletions > 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings",
    [{}, {"priorities": True}, {"evict_by": "episode", "max_episodes": 4}],
    ids=["plain", "priorities", "episodes evicted"],
)
def test_a_mirror_and_a_copy_lose_deleted_episodes_next_to_late_facts(
    buffer_url, make_database_url, settings
):
    fields = {"obs": ("float32", (2,))}
    with ReplayBuffer(buffer_url, fields=fields, **settings) as buffer, buffer.mirror() as mirror:
        for n in range(5):
            columns = {"obs": np.full((10, 2), n), "reward": np.ones(10)}
            buffer.store_episode(columns, episode_id=f"e{n}", task_id=f"e{n}")
        oldest = int("max_episodes" in settings)
        buffer.annotate([12, 25], reward=5.0)
        assert buffer.delete(QueryBuilder().in_("seq", [21])) == 1
        assert buffer.delete_episodes(["e1", "e4", "none"]) == 2
        left = {0.0, 2.0, 3.0} - ({0.0} if oldest else set())
        n_left = 29 - 10 * oldest
        for source in (buffer, mirror):
            batch = source.sample_arrays(500)
            assert set(batch.obs[:, 0].tolist()) == left
            assert set(batch.reward.tolist()) == {1.0, 5.0}
            assert len(source) == n_left
        with ReplayBuffer(make_database_url("sqlite"), "copy", create=True, fields=fields) as copy:
            copy.store_batch(buffer)
            assert len(copy) == n_left
            assert {row.exp_meta.episode_id for row in copy} == {f"e{int(n)}" for n in left}
