"""Objects print what a person wants to know, as text and in notebooks."""

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
import torch

from sqlbuffer import (
    DataRow,
    Experience,
    ExpMeta,
    FifoSampler,
    LatestSampler,
    PrioritizedSampler,
    QueryBuilder,
    RandomSampler,
    RandomTaskSample,
    ReplayBuffer,
)
from sqlbuffer.aio import AsyncReplayBuffer
from sqlbuffer.display import short, shown
from sqlbuffer.steps import Batch, RowList
from tests.support.proxy import proxied

FIELDS = {"obs": ("float32", (4,)), "action": "int64"}
BOLD = "<b>bold</b>"


@pytest.fixture(params=[None, FIELDS], ids=["rows", "chunks"])
def buffer(buffer_url, request):
    with ReplayBuffer(buffer_url, name="mine", max_capacity=5, fields=request.param) as buffer:
        for step in range(3):
            values = {"obs": np.zeros(4), "action": step} if request.param else {"state": step}
            buffer.add(**values, step=step)
        buffer.flush()
        yield buffer


def test_a_buffer_prints_its_name_its_database_its_capacity_and_its_fields(buffer):
    fields = ", fields={obs: float32(4,), action: int64}" if buffer.fields else ""
    shown = f"ReplayBuffer({buffer.url!r}, name='mine', max_capacity=5{fields})"
    assert repr(buffer) == shown
    assert repr(AsyncReplayBuffer(buffer)) == f"Async{shown}"
    buffer.resize(4)
    assert "max_capacity=4" in repr(buffer)


def test_a_notebook_shows_how_full_a_buffer_is(buffer, buffer_url):
    html = buffer._repr_html_()
    assert "<td>name</td><td>mine</td>" in html
    assert f"<td>{buffer.url.replace('&', '&amp;')}</td>" in html
    assert "<td>steps</td><td>3 of 5</td>" in html
    assert ("obs: float32(4,), action: int64" in html) == bool(buffer.fields)
    with ReplayBuffer(buffer_url, name="mine") as other:
        other.resize(2)
    assert "<td>2 of 2</td>" in buffer._repr_html_()


def test_a_buffer_in_memory_shows_how_full_it_is():
    with ReplayBuffer("sqlite://") as buffer:
        buffer.add(state=1)
        assert "<td>steps</td><td>1</td>" in buffer._repr_html_()


def test_a_closed_buffer_prints_as_before(buffer):
    shown = repr(buffer)
    buffer.close()
    assert repr(buffer) == shown
    assert "<td>3 of 5</td>" in buffer._repr_html_()


def test_a_dropped_buffer_prints_and_says_so_in_a_notebook(buffer, buffer_url):
    shown = repr(buffer)
    ReplayBuffer.drop(buffer_url, "mine")
    assert repr(buffer) == shown
    assert "unknown (" in buffer._repr_html_()


def test_a_buffer_whose_server_is_gone_prints_without_its_password(postgres_url):
    url = sa.make_url(postgres_url).set(password="s3cret")
    with proxied(url.render_as_string(hide_password=False)) as proxy:
        buffer = ReplayBuffer(proxy.url, create=True, retry_s=0)
        proxy.closed = True
        proxy.cut_all()
        assert repr(buffer) == f"ReplayBuffer({buffer.url!r}, name='default')"
        html = buffer._repr_html_()
    assert "<td>steps</td><td>unknown (" in html
    assert "s3cret" not in repr(buffer) + html


@pytest.mark.thorough
def test_a_notebook_does_not_wait_for_a_server_that_does_not_answer(postgres_url):
    engine = sa.create_engine(sa.make_url(postgres_url).set(drivername="postgresql+psycopg"))
    with ReplayBuffer(postgres_url, create=True) as buffer, engine.begin() as connection:
        connection.execute(sa.text("LOCK TABLE buffers IN ACCESS EXCLUSIVE MODE"))
        assert "unknown (the database did not answer)" in buffer._repr_html_()
        assert repr(buffer) == f"ReplayBuffer({buffer.url!r}, name='default')"
    engine.dispose()


def test_a_row_prints_what_is_known_of_it_with_arrays_in_short():
    row = DataRow(
        ExpMeta("t", step=3),
        Experience(state=np.zeros((84, 84), np.uint8), actions=[1]),
        id="first",
        fields={"obs": np.ones(2, np.float32), "level": np.int64(2)},
    )
    assert repr(row) == (
        "DataRow(exp_meta=ExpMeta(task_id='t', agent_id='default', step=3), "
        "exp_data=Experience(state=uint8(84, 84) min 0 mean 0 max 0, actions=[1]), id='first', "
        "fields={'obs': float32(2,) [1 1], 'level': 2})"
    )
    html = row._repr_html_()
    assert "<td>obs</td><td>float32(2,) [1 1]</td>" in html
    assert "<td>step</td><td>3</td>" in html
    assert "reward_t" not in html


def test_lists_of_rows_and_of_tasks_are_tables_of_the_first_ones(buffer):
    rows = buffer.sample(3)
    html = rows._repr_html_()
    assert html.startswith("<p>3 rows</p><table><tr><th>seq</th><th>task_id</th>")
    assert html.count("<tr>") == 4
    tasks = buffer.sample_tasks(1)
    assert "... 2 more]" in repr(tasks)
    assert "... 2 more]" in tasks._repr_html_()


def test_a_lease_and_its_rows_print(buffer_url):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        for i in range(4):
            buffer.add(state=i, task_id=f"t{i % 2}")
        lease = buffer.lease(2, order="fifo", group_by="task_id")
        assert repr(lease) == "Lease(2, order='fifo', group_by='task_id', not taken)"
        assert lease._repr_html_() == (
            "<code>Lease(2, order=&#x27;fifo&#x27;, group_by=&#x27;task_id&#x27;, not taken)</code>"
        )
        with lease as batch:
            assert repr(batch).startswith("LeasedBatch(2 groups, 4 rows, lease_id=")
            assert repr(lease).endswith(", held)")
            assert "<th>task_id</th>" in batch._repr_html_()


@pytest.mark.parametrize(
    ("sampler", "shown"),
    [
        (RandomSampler(seed=7), "RandomSampler(replace=False, seed=7)"),
        (RandomTaskSample(seed=7), "RandomTaskSample(seed=7)"),
        (FifoSampler(), "FifoSampler()"),
        (LatestSampler(), "LatestSampler()"),
        (
            PrioritizedSampler(beta=0.5, stratified=True, seed=1),
            "PrioritizedSampler(beta=0.5, beta_anneal_steps=None, normalize='batch', "
            "replace=True, stratified=True, exact=False, seed=1)",
        ),
    ],
)
def test_a_sampler_prints_its_arguments(sampler, shown):
    assert repr(sampler) == shown
    assert sampler._repr_html_() == f"<code>{shown.replace(chr(39), '&#x27;')}</code>"


def test_a_condition_prints_its_groups():
    late = QueryBuilder().gt("step", 3).and_().lt("step", 9).or_().eq("id", "a")
    builder = QueryBuilder().eq("task_id", "t").and_().nested(late)
    shown = "QueryBuilder(task_id eq 't' and (step gt 3 and step lt 9 or id eq 'a'))"
    assert repr(builder) == shown
    assert builder._repr_html_() == f"<code>{shown.replace(chr(39), '&#x27;')}</code>"


def test_a_long_or_deep_condition_prints_in_short():
    builder = QueryBuilder().eq("step", 0)
    for step in range(5_000):
        builder.or_().eq("step", step)
    assert repr(builder).endswith("or step eq 8 ... 4991 more)")
    for _ in range(50):
        builder = QueryBuilder().nested(builder).and_().eq("step", 1)
        builder = QueryBuilder().eq("step", 2).or_().nested(builder)
    assert len(repr(builder)) < 300


def test_notebooks_show_the_markup_of_stored_values_as_text(buffer_url):
    with ReplayBuffer(buffer_url, name=BOLD) as buffer:
        buffer.add(state=BOLD, task_id=BOLD, messages=[{BOLD: BOLD}])
        (row,) = buffer.get_all()
        displayed = [
            buffer,
            row,
            RowList([row]),
            RowList([BOLD]),
            RowList([[row]]),
            Batch({BOLD: np.zeros(2)}, {}),
            QueryBuilder().eq("task_id", BOLD),
        ]
        for each in displayed:
            assert "<b>" not in each._repr_html_()
            assert "&lt;b&gt;" in each._repr_html_()


# Values of any size print in one short line.


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (0.25, "0.25"),
        ("a b", "'a b'"),
        (np.float32(0.5), "0.5"),
        (np.array([1, 2]), "int64(2,) [1 2]"),
        (np.array(["a", "b"], object), "object(2,) ['a' 'b']"),
        (np.zeros((84, 84), np.uint8), "uint8(84, 84) min 0 mean 0 max 0"),
        (np.array([[np.nan, 1.0]]), "float64(1, 2) min 1 mean 1 max 1 1 not finite"),
        (np.zeros((0, 2)), "float64(0, 2) []"),
        (torch.zeros(2, 3), "tensor of torch.float32(2, 3)"),
        ({"b": [1, {"a": (2,)}]}, "{'b': [1, {'a': (2,)}]}"),
        ({"b": 1, "a": 2}, "{'b': 1, 'a': 2}"),
    ],
)
def test_a_small_value_is_whole_and_a_large_array_is_described(value, shown):
    assert short(value) == shown


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    "value",
    [
        *("x" * 10_000, list(range(10_000)), dict.fromkeys(range(10_000)), b"x" * 10_000),
        *(bytearray(10_000), pytest.param(10**10_000, id="integer"), Broken()),
    ],
)
def test_a_large_or_broken_value_is_short(value):
    assert len(short(value)) < 120
    assert len(shown([[value] * 9] * 9)) < 120


def test_a_value_in_a_message_is_one_line():
    table = pd.DataFrame({"x": range(99)})
    assert "\n" in repr(table)
    assert "\n" not in shown(table)


def test_deep_values_end_in_dots():
    value = []
    for _ in range(500):
        value = [value]
    assert len(short(value)) < 50
