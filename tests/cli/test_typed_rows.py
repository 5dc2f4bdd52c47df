"""The command line shows the typed fields of steps."""

import csv
import io
import json

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer

FIELDS = {
    "obs": ("float32", (2,)),
    "frame": ("uint8", (4, 4)),
    "level": "int64",
    "map": "U8",
    "tokens": ("int32", (-1,)),
}


@pytest.fixture
def filled(schema_url):
    with ReplayBuffer(schema_url, name="steps", fields=FIELDS) as buffer:
        columns = {
            "obs": np.float32([[0.25, n] for n in range(3)]),
            "frame": np.full((3, 4, 4), 2, np.uint8),
            "level": [5, 6, 7],
            "map": ["maze", "größe", '"'],
            "tokens": [[1, 2], [], [3]],
            "reward": [1.0, np.nan, 0.5],
        }
        buffer.extend(columns, task_id="t")
    return schema_url


EXPECTED = [
    {"obs": [0.25, n], "frame": [[2] * 4] * 4, "level": 5 + n, "map": text, "tokens": tokens}
    for n, (text, tokens) in enumerate([("maze", [1, 2]), ("größe", []), ('"', [3])])
]


@pytest.mark.parametrize("command", [("show", "t"), ("sample", "-n", "3")], ids=lambda c: c[0])
@pytest.mark.parametrize("option", ["--json", "--ndjson", "--csv"])
def test_every_format_has_them(run, filled, command, option):
    name, *arguments = command
    result = run(name, filled, *arguments, "--buffer", "steps", option)
    if option == "--csv":
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        for row in rows:
            row |= {key: json.loads(row[key]) for key in FIELDS if key != "map"}
            row["step"] = int(row["step"])
    elif option == "--json":
        rows = json.loads(result.stdout)
    else:
        rows = [json.loads(line) for line in result.stdout.splitlines()]
    rows.sort(key=lambda row: row["step"])
    assert [{name: row[name] for name in FIELDS} for row in rows] == EXPECTED


def test_a_table_shows_short_vectors_in_full_and_large_arrays_in_brief(run, filled):
    lines = run("sample", filled, "-n", "3", "--buffer", "steps").stdout.splitlines()
    heads = [cell.strip() for cell in lines[1].strip("|│").replace("│", "|").split("|")]
    assert heads == ["seq", "task_id", "agent_id", "step", "reward", "end", *FIELDS]
    (first,) = (line for line in lines if "maze" in line)
    for part in (
        "float32(2,) [0.25 0]",
        "uint8(4, 4) min 2 mean 2 max 2",
        " 5 ",
        "int32(2,) [1 2]",
    ):
        assert part in first


def test_a_protocol_has_a_line_for_each(run, filled):
    text = run("show", filled, "t", "--buffer", "steps").stdout
    first = text.split("\nstep ")[1].splitlines()
    assert first == [
        "0  agent default  reward 1",
        "  obs      float32(2,) [0.25 0]",
        "  frame    uint8(4, 4) min 2 mean 2 max 2",
        "  level    5",
        "  map      maze",
        "  tokens   int32(2,) [1 2]",
    ]
