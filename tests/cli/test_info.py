import json

from sqlbuffer import ReplayBuffer
from tests.storage.leases.queue import expire
from tests.support.array_rows import make_array_row


def test_info_shows_every_buffer(run, schema_url):
    for name, capacity in (("small", 10), ("unlimited", None)):
        with ReplayBuffer(schema_url, name=name, max_capacity=capacity) as buffer:
            buffer.store_batch([make_array_row(task=n // 8, step=n) for n in range(24)])
    ReplayBuffer(schema_url, name="[red]empty[/]", max_capacity=1).close()
    lines = run("info", schema_url).output.splitlines()
    assert lines[0].endswith("schema 0001")
    cells = {
        row[0]: row[1:6]
        for row in ([cell.strip() for cell in line.strip("│").split("│")] for line in lines)
        if len(row) > 1
    }
    assert cells["small"] == ["10", "10", "100%", "2", "row"]
    assert cells["unlimited"] == ["24", "-", "-", "3", "row"]
    assert cells["[red]empty[/]"] == ["0", "1", "0%", "0", "row"]


def test_info_shows_limits_and_what_is_out_where_a_buffer_has_some(run, schema_url):
    ReplayBuffer(schema_url, name="plain").close()
    assert "max_use" not in run("info", schema_url).output
    settings = {"max_use": 3, "max_staleness": 0, "min_size": 2, "priorities": True}
    with ReplayBuffer(schema_url, name="full", leases=True, max_capacity=6, **settings) as buffer:
        buffer.store_batch([make_array_row(task=0, step=n) for n in range(8)])
        buffer.quarantine([1, 2, 3, 4])
        buffer.set_clock(7)
        with buffer.lease(2, order="freshest"), buffer.lease(1, order="fifo"):
            found = json.loads(run("info", schema_url, "--json").output)
            table = run("info", schema_url).output
        buffer.lease(2, order="freshest").__enter__()
        expire(schema_url)
        assert json.loads(run("info", schema_url, "--json").output)[0]["leased"] == 0
    own = {"leased": 3, "quarantined": 2, "clock": 7, "alpha": 0.6}
    own |= {name: settings[name] for name in ("max_use", "max_staleness", "min_size")}
    assert {name: found[0][name] for name in own} == own
    assert {name: found[1][name] for name in own} == {
        "leased": 0, "quarantined": 0, "clock": None, "alpha": None, "max_use": None,
        "max_staleness": None, "min_size": 0,
    }  # fmt: skip
    assert "max_use" in table
    assert "expired" not in table


def test_info_of_a_database_without_buffers(run, schema_url):
    result = run("info", schema_url)
    assert result.exit_code == 0
    assert "no buffers yet" in result.output


def test_info_shows_the_typed_fields_of_each_buffer(run, schema_url):
    fields = {"obs": ("float32", (3, 2)), "level": {"dtype": "int64", "column": True}}
    meta = {"seed": "int64"}
    ReplayBuffer(schema_url, name="typed", fields=fields, meta_fields=meta).close()
    ReplayBuffer(schema_url, name="plain").close()
    plain, typed = json.loads(run("info", schema_url, "--json").output)
    assert plain["fields"] is None
    expected = [
        ("obs", "step", "float32", [3, 2], False),
        ("level", "step", "int64", [], True),
        ("seed", "episode", "int64", [], False),
    ]
    assert [tuple(field.values()) for field in typed["fields"]] == expected
    table = run("info", schema_url).output
    assert [*typed["fields"][0]] == ["field", "level", "dtype", "shape", "comparable"]
    lines = [line.replace(" ", "") for line in table.splitlines()]
    assert "│typed│obs│step│float32│[3,2]│false│" in lines
    assert "│typed│seed│episode│int64│[]│false│" in lines
    assert "comparable" not in run("info", schema_url, "--csv").output.splitlines()[1]
