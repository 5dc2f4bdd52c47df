"""A field is added to a buffer that has steps: every reader shows its default, at once.

A buffer to which fields were added is compared with one that was made with them.
"""

import asyncio
import subprocess
import sys

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.aio import AsyncReplayBuffer
from sqlbuffer.errors import ArgumentError, BufferConfigError, FieldError
from sqlbuffer.interchange import export_parquet, import_parquet
from sqlbuffer.samplers import FifoSampler
from tests.support.copied_buffers import comparable
from tests.support.sql import run

FIXED = {"obs": ("float32", (3,)), "k": "int32"}
VARYING = {**FIXED, "tokens": ("int64", (-1,))}
ADDED = {
    "weight": {"dtype": "float64", "default": 1.5, "column": True},
    "switch": ("bool", (2,), [True, False]),
    "word": {"dtype": "U4", "default": "ö", "column": True},
}
VARYING_ADDED = {**ADDED, "notes": ("uint8", (-1,), [7, 8])}
KINDS_OF_STEPS = [
    pytest.param(fields, added, settings, id=f"{name}{(settings and '-compressed') or ''}")
    for name, fields, added in (("fixed", FIXED, ADDED), ("varying", VARYING, VARYING_ADDED))
    for settings in ({}, {"compression": "zstd"})
]
N = 12


def old_steps(n, names):
    """Return n steps of the first declaration."""
    columns = {
        "obs": np.arange(3 * n, dtype=np.float32).reshape(n, 3),
        "tokens": [np.arange(i % 4) for i in range(n)],
        "k": np.arange(n, dtype=np.int32),
        "reward": np.arange(n, dtype=np.float64),
        "terminated": np.arange(n) == n - 1,
    }
    return {name: columns[name] for name in (*names, "reward", "terminated")}


def given(names):
    """Return values of the added fields for three steps."""
    columns = {
        "weight": [0.0, float("nan"), -2.5],
        "switch": np.array([[False, True]] * 3),
        "word": np.array(["a", "", "🙂"]),
        "notes": [np.zeros(0, np.uint8), np.ones(3, np.uint8), np.full(1, 9, np.uint8)],
    }
    return {name: columns[name] for name in names}


def written_out(n, names):
    """Return the defaults of the added fields for n steps."""
    columns = {
        "weight": np.full(n, 1.5),
        "switch": np.tile([True, False], (n, 1)),
        "word": np.array(["ö"] * n),
        "notes": [np.array([7, 8], np.uint8)] * n,
    }
    return {name: columns[name] for name in names}


def grown_and_whole(url, fields, added, settings):
    """Return a buffer to which fields were added, and one that was made with them."""
    grown = ReplayBuffer(url, "grown", create=True, fields=fields, priorities=True, **settings)
    whole = ReplayBuffer(
        url, "whole", create=True, fields={**fields, **added}, priorities=True, **settings
    )
    steps = old_steps(N, fields)
    for buffer, more in ((grown, {}), (whole, written_out(N, added))):
        columns = {**steps, **more}
        buffer.store_episode(columns, episode_id="e", task_id="t")
        buffer.extend(columns, task_id="single")
    for n, (name, declaration) in enumerate(added.items()):
        assert grown.add_field(name, declaration)
        # Steps of each layout between them.
        for buffer, names in ((grown, ()), (whole, added)):
            columns = {**old_steps(2, fields), **written_out(2, names)}
            buffer.extend(columns, task_id=f"between{n}")
    columns = {**old_steps(3, fields), **given(added)}
    for buffer in (grown, whole):
        buffer.store_episode(columns, episode_id="new", task_id="t")
    return grown, whole


def shown(rows):
    """Return rows without what each buffer makes itself."""
    return [comparable([row.exp_meta.task_id, row.exp_data, row.fields]) for row in rows]


def arrays(batch):
    return comparable({name: np.asarray(batch[name]).tolist() for name in sorted(batch)})


def in_sql(url, buffer):
    """Return what plain SQL shows of the comparable fields."""
    path = "fields ->> '{0}'" if url.startswith("postgresql") else "json_extract(fields, '$.{0}')"
    columns = ", ".join(path.format(name) for name in ("weight", "word"))
    statement = f"SELECT {columns} FROM v_experiences WHERE buffer = '{buffer.name}' ORDER BY seq"
    return [tuple(map(str, row)) for row in run(url, statement)]


@pytest.mark.parametrize(("fields", "added", "settings"), KINDS_OF_STEPS)
def test_every_reader_shows_the_defaults(schema_url, tmp_path, fields, added, settings):
    grown, whole = grown_and_whole(schema_url, fields, added, settings)
    assert len(set(run(schema_url, "SELECT layout FROM chunk_data"))) == 1 + len(added)
    with grown, whole:
        _compare(grown, whole, tuple(added))
        assert in_sql(schema_url, grown) == in_sql(schema_url, whole)
        for kept in (None, ["weight", "obs"], ["k"]):
            with grown.mirror(fields=kept) as here, whole.mirror(fields=kept) as there:
                _compare_draws(here, there, {})
    again = ReplayBuffer(schema_url, "grown", fields=fields)  # the first declaration
    assert list(again.fields) == [*fields, *added]
    with again, ReplayBuffer(schema_url, "whole") as whole:
        _compare(again, whole, tuple(added))
        _compare_copies(again, whole, schema_url, tmp_path)


def _compare(grown, whole, added):
    n = len(whole)
    assert shown(grown) == shown(whole)
    for names in (["k"], ["weight"], ["obs", "switch"], list(added), ["state", "word"]):
        assert shown(grown.get_all(fields=names)) == shown(whole.get_all(fields=names))
    assert shown(grown.get_by_task_id("t")) == shown(whole.get_by_task_id("t"))
    assert shown(grown.get_paginated(2, 10)) == shown(whole.get_paginated(2, 10))
    for condition in (
        QueryBuilder().eq("weight", 1.5),
        QueryBuilder().gt("weight", 0.0).and_().eq("word", "ö"),
        QueryBuilder().ne("weight", 1.5),
        QueryBuilder().lt("weight", 0.0).or_().eq("word", "a"),
    ):
        assert grown.size(condition) == whole.size(condition) > 0
        assert shown(grown.get_all(condition)) == shown(whole.get_all(condition))
    _compare_draws(grown, whole, {})
    _compare_draws(grown, whole, {"fields": ["word", "k"]})
    for mode, options in (
        ("step", {}),
        ("transition", {"n_step": 2, "skip_single": True}),
        ("window", {"length": 3}),
        ("trajectory", {}),
    ):
        batches = [
            [arrays(batch) for batch in buffer.loader(mode, 5, shuffle=False, epochs=1, **options)]
            for buffer in (grown, whole)
        ]
        assert batches[0] == batches[1]
        assert len(batches[0]) > 0
    for name in added:
        assert list(grown.fields[name].shape) == list(whole.fields[name].shape)
    statement = (
        "SELECT c.block, c.block_place, c.layout FROM chunk_steps c JOIN buffers b "
        "ON b.id = c.buffer_id WHERE b.name = '{}' ORDER BY c.seq"
    )
    decoded = [
        [comparable(buffer.decode(*row)) for row in run(buffer.url, statement.format(buffer.name))]
        for buffer in (grown, whole)
    ]
    assert decoded[0] == decoded[1]
    assert len(decoded[0]) == n


def _compare_draws(grown, whole, form):
    form = {"sampler": FifoSampler(), **form}
    draws = [source.sample_arrays(20, **form) for source in (grown, whole)]
    assert arrays(draws[0]) == arrays(draws[1])


def _compare_copies(grown, whole, url, folder):
    with ReplayBuffer(url, "copy", create=True, config=grown.config) as copy:
        assert grown.copy_to(copy).is_exact
        assert shown(copy) == shown(whole)
    # Buffers with the fields of another history take the steps too.
    with ReplayBuffer(url, "same", create=True, config=whole.config) as same:
        grown.copy_to(same)
        assert shown(same) == shown(whole)
        assert whole.copy_to(same, prefix="again/").n_copied == len(whole)
    with ReplayBuffer(url, "back", create=True, config=grown.config) as back:
        whole.copy_to(back)
        assert shown(back) == shown(whole)
        assert grown.copy_to(back, prefix="again/").n_copied == len(grown)
    export_parquet(grown, folder / "grown")
    import_parquet(folder / "grown", url, "restored")
    with ReplayBuffer(url, "restored") as restored:
        assert shown(restored) == shown(whole)
        restored.extend(old_steps(1, restored.fields.keys() & {"obs", "k", "tokens"}))
        assert restored.add_field("later", ("int8", (), 3))
        assert {int(row.fields["later"]) for row in restored} == {3}


def weights(rows):
    return [float(row.fields["weight"]) for row in rows]


@pytest.fixture
def buffer(schema_url):
    with ReplayBuffer(schema_url, create=True, fields=FIXED) as buffer:
        buffer.extend(old_steps(4, FIXED))
        yield buffer


WEIGHT = ("float32", (), 1.0)


def test_a_live_client_goes_on(buffer):
    names = {**FIXED, "weight": WEIGHT}
    client = ReplayBuffer(buffer.url, fields=FIXED)
    stream = (row.fields.get("weight") for row in client)
    next(stream)
    with client.episode("t", episode_id="open") as episode, buffer.mirror() as mirror:
        episode.append(obs=np.zeros(3), k=7)  # it waits in the writer
        assert buffer.add_field("weight", WEIGHT)
        assert {float(weight) for weight in stream if weight is not None} <= {1.0}
        client.extend(old_steps(2, FIXED))
        episode.append(obs=np.ones(3), k=8)
        client.flush()
        assert weights(buffer) == [1.0] * 8
        assert weights(client) == [1.0] * 8  # its look
        assert list(client.fields) == list(names)
        # From here on it knows the field, also in writers that are open.
        episode.append(obs=np.ones(3), k=9, weight=3.0, terminated=True)
        client.extend({**old_steps(1, FIXED), "weight": [0.5]})
        client.flush()
        assert sorted(weights(buffer)) == [0.5, *[1.0] * 8, 3.0]
        mirror.refresh()
        drawn = mirror.sample_arrays(10, sampler=FifoSampler())
        assert sorted(drawn["weight"].tolist()) == [0.5, *[1.0] * 8, 3.0]
    client.close()


_PROGRAM = """
import sys
import numpy as np
from sqlbuffer import ReplayBuffer

with ReplayBuffer(sys.argv[1], fields={"obs": ("float32", (3,)), "k": "int32"}) as buffer:
    print("open", flush=True)
    more = {}
    for line in sys.stdin:
        if line.strip() == "learn":
            assert not buffer.add_field("weight", ("float32", (), 1.0))
            more = {"weight": [2.0]}
        buffer.extend({"obs": np.ones((1, 3)), "k": [5], **more})
        print("stored", flush=True)
"""


def test_a_process_that_only_writes_goes_on_and_may_learn(buffer):
    command = [sys.executable, "-c", _PROGRAM, buffer.url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "open\n"
        buffer.add_field("weight", WEIGHT)
        for word in ("store", "learn", "store"):
            print(word, file=process.stdin, flush=True)
            assert process.stdout.readline() == "stored\n"
        process.stdin.close()
    assert process.returncode == 0
    assert weights(buffer) == [1.0] * 5 + [2.0, 2.0]


def test_annotate_fills_the_field(buffer):
    declaration = {"dtype": "float64", "default": 0.0, "column": True}
    seqs = [row.seq for row in buffer]
    with buffer.mirror() as mirror:
        buffer.add_field("weight", declaration)
        assert buffer.annotate(seqs[1:3], weight=np.array([0.25, 0.75])) == 2
        assert weights(buffer) == [0.0, 0.25, 0.75, 0.0]
        above = QueryBuilder().gt("weight", 0.5)
        assert weights(buffer.get_all(above)) == [0.75]
        mirror.refresh()
        drawn = mirror.sample_arrays(4, sampler=FifoSampler())
        assert drawn["weight"].tolist() == [0.0, 0.25, 0.75, 0.0]
        assert mirror.sample_arrays(1, condition=above)["k"].tolist() == [2]


def test_a_mirror_that_is_shared_or_keeps_chosen_fields_goes_on_without_the_field(buffer):
    buffer.store_episode(old_steps(4, FIXED), episode_id="e", task_id="t")
    with buffer.mirror(shared=True) as shared, buffer.mirror(fields=["k"]) as chosen:
        buffer.add_field("weight", WEIGHT)
        buffer.extend({**old_steps(2, FIXED), "weight": [2.0, 3.0]})
        for mirror in (shared, chosen):
            mirror.refresh()
            drawn = mirror.sample_arrays(10, sampler=FifoSampler())
            assert "weight" not in drawn
            assert drawn["k"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
            with pytest.raises(FieldError, match="weight"):
                mirror.sample_arrays(2, fields=["weight"])
        # Another one has it.
        with buffer.mirror(shared=True) as newer:
            assert newer.sample_arrays(10, sampler=FifoSampler())["weight"].tolist()[-1] == 3.0


@pytest.mark.parametrize("settings", [{}, {"compression": "zstd"}])
def test_a_mirror_of_varying_fields_goes_on_without_the_added_ones(schema_url, settings):
    fields = {"tokens": ("int64", (-1,)), "k": "int32"}
    tokens = [np.arange(i % 3) for i in range(4)]
    with ReplayBuffer(schema_url, create=True, fields=fields, **settings) as buffer:
        buffer.extend({"tokens": tokens, "k": range(4)})
        with buffer.mirror(shared=True) as shared, buffer.mirror(fields=["tokens"]) as chosen:
            for name, default in (("notes", [7, 8]), ("more", [])):
                buffer.add_field(name, ("uint8", (-1,), default))
                buffer.extend({"tokens": tokens, "k": range(4), name: [np.ones(3, np.uint8)] * 4})
            for mirror in (shared, chosen):
                mirror.refresh()
                drawn = mirror.sample_arrays(12, sampler=FifoSampler())
                assert not {"notes", "more"} & drawn.keys()
                assert drawn["tokens_lens"].tolist() == [0, 1, 2, 0] * 3
                assert drawn["tokens"].tolist() == [[0, 0], [0, 0], [0, 1], [0, 0]] * 3


def test_draws_and_leases_learn_of_the_field(schema_url):
    settings = {"leases": True, "fields": FIXED}
    with ReplayBuffer(schema_url, create=True, **settings) as buffer:
        buffer.extend(old_steps(4, FIXED))
        sampling, leasing = (ReplayBuffer(buffer.url) for _ in range(2))
        buffer.add_field("weight", WEIGHT)
        buffer.extend({**old_steps(1, FIXED), "weight": [2.0]})
        with leasing.lease(5) as batch:
            assert sorted(weights(batch)) == [1.0] * 4 + [2.0]
        sampling.sample(1)
        assert sampling.sample_arrays(4, fields=["weight"])["weight"].tolist()
        sampling.extend({**old_steps(1, FIXED), "weight": [3.0]})
        for client in (sampling, leasing):
            assert weights(client)[-1] == 3.0
            client.close()


def test_a_second_call_changes_nothing(buffer):
    assert buffer.add_field("weight", WEIGHT)
    config = buffer.config
    assert not buffer.add_field("weight", WEIGHT)
    assert buffer.config == config
    with pytest.raises(FieldError, match=r"'weight' is stored as .*given as .*another name"):
        buffer.add_field("weight", ("float64", (), 1.0))
    with pytest.raises(FieldError, match=r"'k' is stored as.*take another name"):
        buffer.add_field("k", ("int64", (), 0))
    assert buffer.config == config


@pytest.mark.parametrize(
    ("name", "declaration", "error"),
    [
        ("weight", "float32", r"need a default.*\('float32', \(\), 0.0\)"),
        ("weight", ("float32", (2,)), "need a default"),
        ("weight", ("no dtype", (), 0), "weight"),
        ("weight", ("float32", (2,), [1.0]), "weight"),
        ("reward", WEIGHT, "reward"),
        ("next_obs", ("float32", (3,), [0.0] * 3), "take another name"),
        ("two words", WEIGHT, "two words"),
        (None, WEIGHT, "None"),
    ],
)
def test_a_field_that_cannot_be_added(buffer, name, declaration, error):
    with pytest.raises(FieldError, match=error):
        buffer.add_field(name, declaration)
    assert list(buffer.fields) == ["obs", "k"]
    assert [int(row.fields["k"]) for row in buffer] == [0, 1, 2, 3]


def test_a_buffer_of_rows_has_no_typed_fields_to_add_to(schema_url):
    with (
        ReplayBuffer(schema_url, create=True) as rows,
        pytest.raises(FieldError, match=r"has no typed fields .*fields="),
    ):
        rows.add_field("weight", WEIGHT)


def test_an_older_declaration_opens_the_buffer_and_a_wrong_one_does_not(buffer):
    buffer.add_field("weight", WEIGHT)
    every = {**FIXED, "weight": WEIGHT}
    for fields in (FIXED, every, None):
        with ReplayBuffer(buffer.url, fields=fields) as again:
            assert list(again.fields) == list(every)
    for fields in ({"obs": ("float32", (3,))}, {**every, "more": WEIGHT}, {"weight": WEIGHT}):
        with pytest.raises((FieldError, BufferConfigError), match="stored as"):
            ReplayBuffer(buffer.url, fields=fields)


def test_a_block_of_plain_sql_needs_its_layout(buffer):
    buffer.add_field("weight", WEIGHT)
    ((block, place, layout),) = run(
        buffer.url, "SELECT block, block_place, layout FROM chunk_steps WHERE seq = 2"
    )
    assert buffer.decode(block, place, layout)["weight"] == 1.0
    with pytest.raises(ArgumentError, match="give the column `layout`"):
        buffer.decode(block, place)


def test_asyncio(buffer):
    async def add():
        async with await AsyncReplayBuffer.open(buffer.url) as other:
            return await other.add_field("weight", WEIGHT)

    assert asyncio.run(add())
    assert weights(buffer) == [1.0] * 4


def test_eviction_and_a_cleared_buffer(schema_url):
    with ReplayBuffer(schema_url, create=True, fields=FIXED, max_capacity=6) as buffer:
        assert buffer.add_field("early", WEIGHT)  # an empty buffer
        buffer.extend(old_steps(4, FIXED))
        assert buffer.add_field("weight", WEIGHT)
        buffer.extend({**old_steps(4, FIXED), "weight": [2.0] * 4})
        assert weights(buffer) == [1.0] * 2 + [2.0] * 4
        buffer.extend({**old_steps(4, FIXED), "weight": [3.0] * 4})
        assert weights(buffer) == [2.0] * 2 + [3.0] * 4
        buffer.clear()
        assert weights(buffer) == []
        buffer.extend(old_steps(1, FIXED))
        assert weights(buffer) == [1.0]


def test_a_copy_whose_fields_are_in_another_order_shows_the_same(schema_url):
    turned = dict(reversed(VARYING.items()))
    with (
        ReplayBuffer(schema_url, "source", create=True, fields=VARYING) as source,
        ReplayBuffer(schema_url, "target", create=True, fields=turned) as target,
    ):
        source.extend(old_steps(5, VARYING))
        assert source.copy_to(target).n_steps == 5
        wanted = [comparable(dict(sorted(row.fields.items()))) for row in source]
        assert [comparable(dict(sorted(row.fields.items()))) for row in target] == wanted
