"""Declared scalar fields that are annotated are values like others, in each reader."""

import json

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import FieldError
from sqlbuffer.interchange import export_jsonl, export_parquet, import_parquet, insert_jsonl
from sqlbuffer.storage.database import readonly
from tests.conftest import KINDS

FIELDS = {
    "obs": ("float32", (2,)),
    "weight": "float32",
    "token": {"dtype": "int64", "column": True},
    "big": "uint64",
    "is_good": "bool",
    "text": "U4",
    "images": ("uint8", (-1,)),
}


def columns_of(n):
    return {
        "obs": np.arange(2 * n, dtype=np.float32).reshape(n, 2),
        "weight": np.ones(n, np.float32),
        "token": np.arange(n),
        "big": np.arange(n, dtype=np.uint64),
        "is_good": np.zeros(n, bool),
        "text": ["a"] * n,
        "images": [np.arange(i, dtype=np.uint8) for i in range(n)],
        "reward": np.zeros(n),
        "terminated": np.arange(n) == n - 1,
    }


def fill(buffer, n=6):
    buffer.store_episode(columns_of(n), episode_id="e", final={"obs": np.zeros(2, np.float32)})


@pytest.fixture(params=[None, "zstd"])
def buffer(request, schema_url):
    with ReplayBuffer(
        schema_url, "b", create=True, fields=FIELDS, compression=request.param,
        observation_fields=["obs"],
    ) as buffer:  # fmt: skip
        fill(buffer)
        yield buffer


def in_order(batch, name):
    return batch[name][np.argsort(batch.info["seq"])].tolist()


def test_late_fields_are_read_in_each_way(buffer):
    buffer.annotate([2, 4], weight=[0.5, 0.25], big=[2**64 - 1, 7], is_good=True, token=[70, 80])
    expected = {
        "weight": [1.0, 0.5, 1.0, 0.25, 1.0, 1.0],
        "big": [0, 2**64 - 1, 2, 7, 4, 5],
        "is_good": [False, True, False, True, False, False],
        "token": [0, 70, 2, 80, 4, 5],
    }
    assert expected == {name: [row.fields[name] for row in buffer] for name in expected}
    with buffer.mirror(refresh_s=3_600) as mirror:
        for source in (buffer, mirror):
            (steps,) = source.loader("step", 6, epochs=1, shuffle=False)
            assert in_order(steps, "weight") == [1.0, 0.5, 1.0, 0.25, 1.0, 1.0]
            assert in_order(steps, "big") == [0, 2**64 - 1, 2, 7, 4, 5]
            windows = next(iter(source.loader("trajectory", 1, replace=True)))
            assert windows["token"].tolist() == [[0, 70, 2, 80, 4, 5]]
            (n_step,) = source.loader(
                "n_step", 6, n_step=2, sequence_fields=["weight"], epochs=1, shuffle=False
            )
            assert in_order(n_step, "seq_weight")[0] == [1.0, 0.5]
        buffer.annotate([1], weight=9.0)
        mirror.refresh()
        (steps,) = mirror.loader("step", 6, epochs=1, shuffle=False)
        assert in_order(steps, "weight")[0] == 9.0
    assert buffer.sample(6, fields=["weight"])[0].fields.keys() == {"weight"}


def test_mirrors_of_some_fields_and_shared_ones_have_late_fields(buffer):
    buffer.annotate([2], weight=0.5, token=70)
    with buffer.mirror(refresh_s=3_600, fields=["token"]) as mirror:
        (steps,) = mirror.loader("step", 6, epochs=1, shuffle=False)
        assert in_order(steps, "token") == [0, 70, 2, 3, 4, 5]
        assert "weight" not in steps
        buffer.annotate([3], weight=0.25, token=80)
        mirror.refresh()
        (steps,) = mirror.loader("step", 6, epochs=1, shuffle=False)
        assert in_order(steps, "token") == [0, 70, 80, 3, 4, 5]
    with buffer.mirror(refresh_s=3_600, shared=True) as mirror:
        drawn = mirror.sample_arrays(64)
        late = dict(zip(drawn.info["seq"].tolist(), drawn["weight"].tolist(), strict=True))
        assert (late[2], late[3], late[1]) == (0.5, 0.25, 1.0)


def test_conditions_and_views_use_late_fields(buffer, schema_url):
    buffer.annotate([2, 4], token=[70, 80], weight=0.5)
    is_large = QueryBuilder().gt("token", 50).build()
    assert sorted(row.seq for row in buffer.get_all(is_large)) == [2, 4]
    assert set(buffer.sample_arrays(8, condition=is_large)["token"].tolist()) <= {70, 80}
    with buffer.mirror(refresh_s=3_600, condition=is_large) as mirror:
        assert set(mirror.sample_arrays(8)["token"].tolist()) <= {70, 80}
    sql = "SELECT seq, fields FROM v_experiences WHERE seq IN (1, 2) ORDER BY seq"
    shown = [fields for _, fields in readonly.query(schema_url, sql).rows]
    assert [as_dict(fields) for fields in shown] == [
        {"token": 0},
        {"token": 70, "weight": 0.5},
    ]


def as_dict(value):
    return json.loads(value) if isinstance(value, str) else value


def test_each_version_of_a_field_is_kept(buffer, schema_url):
    buffer.annotate([1], weight=1.5)
    buffer.annotate([1], weight=2.5, token=9)
    buffer.annotate([1], weight=0.5, version=1)  # late: version 2 counts
    assert next(iter(buffer)).fields["weight"] == 2.5
    sql = "SELECT version, fields FROM v_labels ORDER BY version"
    versions = [(n, as_dict(fields)) for n, fields in readonly.query(schema_url, sql).rows]
    assert versions == [(1, {"weight": 0.5}), (2, {"weight": 2.5, "token": 9})]


def test_a_field_can_be_annotated_by_a_condition(buffer):
    assert buffer.annotate(QueryBuilder().gt("token", 3).build(), weight=3) == 2
    assert [row.fields["weight"] for row in buffer] == [1, 1, 1, 1, 3, 3]


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("there", KINDS)
def test_copies_and_exports_have_late_fields(buffer, make_database_url, tmp_path, there):
    buffer.annotate([2], weight=0.5, is_good=True)
    url = make_database_url(there, schema=True)
    with ReplayBuffer(url, "c", create=True, config=buffer.config) as other:
        buffer.copy_to(other)
        assert [row.fields["weight"] for row in other] == [1, 0.5, 1, 1, 1, 1]
        other.annotate([2], token=5)
        assert [row.fields["weight"] for row in other][1] == 0.5
    export_parquet(buffer, tmp_path / "out")
    export_jsonl(buffer, tmp_path / "out.jsonl")
    import_parquet(tmp_path / "out", url, name="parquet")
    ReplayBuffer(url, "lines", create=True, fields=FIELDS).close()
    insert_jsonl(tmp_path / "out.jsonl", url, "lines")
    with ReplayBuffer(url, "parquet") as restored, ReplayBuffer(url, "lines") as lines:
        for each in (restored, lines):
            assert [row.fields["weight"] for row in each] == [1, 0.5, 1, 1, 1, 1]
            assert [row.fields["is_good"] for row in each][1]


def test_a_full_buffer_keeps_the_late_fields_of_what_is_left(schema_url):
    with ReplayBuffer(
        schema_url, "full", create=True, fields=FIELDS, observation_fields=["obs"], max_capacity=8
    ) as buffer:
        fill(buffer, 6)
        buffer.annotate([1, 5], weight=0.5)
        buffer.store_episode(
            {name: list(column)[:4] for name, column in columns_of(6).items()}, episode_id="f"
        )
        assert [row.seq for row in buffer] == [3, 4, 5, 6, 7, 8, 9, 10]
        late = [1, 1, 0.5, 1, 1, 1, 1, 1]
        assert [row.fields["weight"] for row in buffer] == late
        assert buffer.annotate([1, 2], weight=9.0) == 0
        with buffer.mirror(refresh_s=3_600) as mirror:
            for source in (buffer, mirror):
                (steps,) = source.loader("step", 8, epochs=1, shuffle=False)
                assert in_order(steps, "weight") == late


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"wieght": 1.0}, "annotate() does not know 'wieght'; .*weight"),
        ({"obs": 1.0}, "field 'obs': only a number"),
        ({"text": "b"}, "field 'text': only a number"),
        ({"weight": float("nan")}, "weight.*finite"),
        ({"weight": [1.0, 2.0, 3.0]}, "weight: expected 2 numbers"),
        ({"token": 1.5}, "(?m)token.*cast it$"),
        ({"weight": [[1.0], [2.0, 3.0]]}, "weight: expected numbers in one dimension"),
        ({"weight": [0.5, None]}, "field 'weight': expected float32"),
        ({}, "annotate() needs"),
    ],
)
def test_what_is_refused_writes_nothing(buffer, values, message):
    with pytest.raises(FieldError, match=message.replace("()", r"\(\)")):
        buffer.annotate([1, 2], **values)
    assert [row.fields["weight"] for row in buffer] == [1] * 6
