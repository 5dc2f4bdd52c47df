"""`parent_id`: the episode that an episode came from, in every call, view, file and copy."""

import json
import random

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqlbuffer import QueryBuilder, QueryFilter, ReplayBuffer
from sqlbuffer.errors import FieldError
from sqlbuffer.interchange import (
    RolloutRows,
    export_jsonl,
    export_parquet,
    import_parquet,
    insert_jsonl,
)
from sqlbuffer.orm import Episode, Experience, engine
from sqlbuffer.steps import DataRow, ExpMeta
from sqlbuffer.steps import Experience as StepData
from tests.support.mirrors import drawn_rows
from tests.support.sql import run

LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}


@pytest.fixture(params=LAYOUTS)
def settings(request):
    return LAYOUTS[request.param]


def value(buffer):
    return {"obs": 0.0} if buffer.fields else {"state": 0}


def parents_in(url, name="default"):
    text = f"SELECT episode_id, parent_id FROM v_episodes WHERE buffer = '{name}'"
    return dict(run(url, text))


def steps_in(buffer):
    return [(row.exp_meta.episode_id, row.exp_meta.parent_id) for row in buffer.get_all()]


def fill(buffer, chooser, n=24):
    """Store episodes by each call that begins one, in any order; return their parents."""
    parents, one = {}, value(buffer)
    for number in range(n):
        key, parent = f"e{number}", chooser.choice([None, "gone", "é\U0001f600", f"e{n}", "e1"])
        parent = None if parent == key else parent
        parents[key] = parent
        keys = {"task_id": "t", "episode_id": key}
        named = keys | ({} if parent is None else {"parent_id": parent})
        way = chooser.randrange(5)
        if way == 0:
            with buffer.episode(**named) as writer:
                writer.append(**one)
                writer.append(**one, terminated=True)
        elif way == 1:
            buffer.store_episode({name: [item] * 2 for name, item in one.items()}, **named)
        elif way == 2:
            buffer.add(**named, **one)
            buffer.add(**keys, **one)  # its first step decides
        elif way == 3:
            columns = {name: [item] * 2 for name, item in one.items()}
            both = {"episode_id": [key, key], "parent_id": [parent, parent], "task_id": "t"}
            buffer.extend(columns, **(both if parent else keys))
        else:
            data = StepData(state=one.get("state"))
            fields = {name: item for name, item in one.items() if buffer.fields}
            metas = [
                ExpMeta("t", step=0, episode_id=key, parent_id=parent),
                ExpMeta("t", step=1, episode_id=key),
            ]
            buffer.store_batch([DataRow(meta, data, fields=fields) for meta in metas])
    buffer.flush()
    return parents


def test_every_call_view_and_file_keeps_parents(buffer_url, settings, tmp_path):
    chooser = random.Random(str(settings))
    with ReplayBuffer(buffer_url, **settings) as buffer:
        parents = fill(buffer, chooser)
        own = sorted((key, parent) for key, parent in parents.items() for _ in range(2))
        assert parents_in(buffer_url) == parents
        assert sorted(steps_in(buffer), key=str) == sorted(own, key=str)
        drawn = buffer.sample(30)
        assert all(parents[row.exp_meta.episode_id] == row.exp_meta.parent_id for row in drawn)
        with Session(engine(buffer_url)) as session:
            for kind in (Episode, Experience):
                pairs = session.execute(select(kind.episode_id, kind.parent_id)).all()
                assert dict(map(tuple, pairs)) == parents
        export_jsonl(buffer, tmp_path / "steps.jsonl")
        insert_jsonl(tmp_path / "steps.jsonl", buffer_url, "lines", **settings)
        export_parquet(buffer, tmp_path / "out")
        import_parquet(tmp_path / "out", buffer_url, "restored")
        for name in ("appended", "foreign"):
            with ReplayBuffer(buffer_url, name, create=True, **settings) as other:
                other.add(task_id="own", **value(other))
        import_parquet(tmp_path / "out", buffer_url, "appended", prefix="run1/", include_open=True)
        file = (tmp_path / "out" / "steps-00000.parquet").rename(tmp_path / "foreign.parquet")
        import_parquet(file, buffer_url, "foreign", prefix="run1/")
        insert_jsonl(tmp_path / "steps.jsonl", buffer_url, "prefixed", prefix="run1/", **settings)
        with ReplayBuffer(buffer_url, "copied", create=True, **settings) as copied:
            buffer.copy_to(copied)
        with ReplayBuffer(buffer_url, "merged", create=True, **settings) as merged:
            merged.add(task_id="own", **value(merged))
            buffer.copy_to(merged, include_open=True)
            buffer.copy_to(merged, prefix="run1/", include_open=True)
        for name in ("lines", "restored", "copied"):
            assert parents_in(buffer_url, name) == parents, name
            with ReplayBuffer(buffer_url, name) as other:
                assert sorted(steps_in(other), key=str) == sorted(own, key=str), name
    prefixed = {f"run1/{key}": parent and f"run1/{parent}" for key, parent in parents.items()}
    assert parents_in(buffer_url, "merged") == parents | prefixed
    for name in ("prefixed", "appended", "foreign"):
        assert parents_in(buffer_url, name) == prefixed, name


def test_conditions_find_the_episodes_that_came_from_one(buffer_url, settings):
    with ReplayBuffer(buffer_url, **settings) as buffer:
        parents = fill(buffer, random.Random(7))
        tree = QueryBuilder().eq("parent_id", "e1").build()
        keys = {key for key, parent in parents.items() if parent == "e1"}
        assert keys
        assert {row.exp_meta.episode_id for row in buffer.get_all(tree)} == keys
        assert {row.exp_meta.episode_id for row in buffer.sample(40, condition=tree)} <= keys
        rows = [row for row in buffer.get_all() if QueryFilter(tree).check_condition(row)]
        assert {row.exp_meta.episode_id for row in rows} == keys
        if settings:
            with buffer.mirror() as mirror:
                steps = {row.seq for row in rows}
                assert set(drawn_rows(mirror, "step", 40 * len(rows), condition=tree)) == steps


def test_an_episode_has_one_parent_and_not_itself(buffer_url, settings):
    with ReplayBuffer(buffer_url, **settings) as buffer:
        one = value(buffer)
        with pytest.raises(FieldError, match="parent_id: episode 'e' cannot be its own parent"):
            buffer.episode("t", episode_id="e", parent_id="e")
        columns = {name: [item] for name, item in one.items()}
        with pytest.raises(FieldError, match="cannot be its own parent"):
            buffer.store_episode(columns, task_id="t", episode_id="e", parent_id="e")
        with pytest.raises(FieldError, match="cannot be its own parent"):
            buffer.add(task_id="t", episode_id="e", parent_id="e", **one)
        with pytest.raises(FieldError, match="only an episode comes from another one: give its"):
            buffer.add(task_id="t", parent_id="e", **one)
        with pytest.raises(FieldError, match="parent_id: expected text"):
            buffer.episode("t", parent_id=5)
        with pytest.raises(FieldError, match="parent_id"):
            buffer.episode("t", parent_id="x" * 601)
        assert len(buffer) == 0
        buffer.add(task_id="t", episode_id="e", parent_id="p", **one)
        with pytest.raises(FieldError, match="has parent 'p', and not 'q'; its first step decides"):
            buffer.add(task_id="t", episode_id="e", parent_id="q", **one)
        buffer.add(task_id="t", episode_id="f", **one)
        with pytest.raises(FieldError, match="parent_id: episode 'f' of task 't' has no parent"):
            buffer.extend(columns, task_id="t", episode_id="f", parent_id="q")
        writer = buffer.episode("t", episode_id="g", parent_id="p")
        writer.append(**one)
        writer.abort()
        with pytest.raises(FieldError, match="has parent 'p', and not 'q'"):
            buffer.episode("t", episode_id="g", parent_id="q", resume=True)
        with buffer.episode("t", episode_id="g", resume=True) as writer:
            writer.append(**one)
        assert parents_in(buffer_url) == {"e": "p", "f": None, "g": "p"}
        # A child remains when its parent has left.
        buffer.resize(1)
        assert parents_in(buffer_url)["e"] == "p"


def test_plain_sql_gives_parents(buffer_url):
    with ReplayBuffer(buffer_url):
        insert = "INSERT INTO v_experiences (buffer, task_id, agent_id, step, episode_id, "
        insert += "parent_id) VALUES ('default', 't', 'a', 0, "
        run(buffer_url, insert + "'e', 'p')")
        run(buffer_url, insert + "'e', NULL)")
        for values, message in (
            ("'e', 'q')", "the episode has another parent"),
            ("'x', 'x')", "its own parent|parent_is_another"),
            ("NULL, 'q')", "give the episode_id of the new one too"),
        ):
            with pytest.raises(DBAPIError, match=message):
                run(buffer_url, insert + values)
        assert parents_in(buffer_url) == {"e": "p"}
        text = "SELECT episode_id, parent_id FROM v_experiences"
        assert run(buffer_url, text) == [("e", "p"), ("e", "p")]


def test_rollouts_have_parents_as_a_column():
    buffer = ReplayBuffer("sqlite://")
    with buffer.episode("t", episode_id="sub", parent_id="main") as writer:
        writer.append(messages=["?"], actions=["!"], terminated=True)
    (row,) = RolloutRows(buffer, columns=["parent_id"])
    assert row["parent_id"] == "main"
    (line,) = [json.loads(json.dumps(row.to_dict())) for row in buffer.get_all()]
    assert line["exp_meta"]["parent_id"] == "main"
