"""Steps as JSON lines: what one buffer writes another one stores."""

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import ExportError, FieldError, FileImportError
from sqlbuffer.interchange import export_jsonl, insert_jsonl
from sqlbuffer.interchange.jsonl import lines_of
from tests.support.copied_buffers import comparable, json_rows, odd_steps, typed_steps
from tests.support.processes import wait_until

LINE = '{"task_id": "t", "step": %d, "state": {"x": %d}, "reward": 0.5}'


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().rstrip("\n").split("\n")]


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("make", [json_rows, typed_steps, odd_steps])
def test_a_buffer_stores_what_another_one_writes(
    buffer_url: str, make: Any, tmp_path: Path
) -> None:
    source, path = make(buffer_url, "source"), tmp_path / "steps.jsonl"
    report = export_jsonl(source, path)
    assert report.n_steps == len(lines(path)) == len(source)
    config = source.config.replace({"max_capacity": None})
    target = ReplayBuffer(buffer_url, "target", config=config)
    inserted = insert_jsonl(path, buffer_url, "target")
    assert inserted.n_stored == len(source) == len(target)
    for own, other in zip(target, source, strict=True):
        assert comparable((own.id, own.exp_meta, own.exp_data, own.fields)) == comparable(
            (other.id, other.exp_meta, other.exp_data, other.fields)
        )
    again = insert_jsonl(path, buffer_url, "target")
    assert (again.n_stored, again.n_duplicates) == (0, len(source))


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("float16", [0.1, np.nan, -np.inf]),
        ("float32", [0.1, -0.0, 3e38]),
        ("float64", [0.1, 1e300, np.inf]),
        ("uint64", [0, 2**63, 2**64 - 1]),
        ("bool", [True, False, True]),
        ("complex64", [1 + 2j, complex(np.nan, 1), 0]),
        ("S3", [b"a", b"\xff", b""]),
        ("U4", ["é🙂", "", "ab"]),
    ],
)
def test_values_of_every_type_come_back(
    sqlite_url: str, tmp_path: Path, dtype: str, values: Any
) -> None:
    own = np.array(values, dtype)
    fields: dict[str, Any] = {"x": dtype, "v": (dtype, (2, 1))}
    source = ReplayBuffer(sqlite_url, "source", fields=fields)
    pairs = np.stack([own, own], 1)[:, :, None]
    source.extend({"x": own, "v": pairs}, task_id="t")
    export_jsonl(source, tmp_path / "steps.jsonl")
    target = ReplayBuffer(sqlite_url, "target", fields=fields)
    insert_jsonl(tmp_path / "steps.jsonl", sqlite_url, "target")
    assert comparable([row.fields for row in target]) == comparable([row.fields for row in source])


def test_a_file_stays_unless_it_is_to_be_replaced(sqlite_url: str, tmp_path: Path) -> None:
    buffer, path = json_rows(sqlite_url, "source"), tmp_path / "steps.jsonl"
    export_jsonl(buffer, path, columns=["step"])
    with pytest.raises(ExportError, match=r"there is a file .* already; name another one"):
        export_jsonl(buffer, path)
    assert set(lines(path)[0]) == {"step"}
    export_jsonl(buffer, path, overwrite=True)
    assert len(lines(path)[0]) > 5
    with pytest.raises(ExportError, match="is a folder"):
        export_jsonl(buffer, tmp_path, overwrite=True)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        export_jsonl(buffer, path, overwrite=True, on_progress=interrupt)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".steps")] == []


def piped(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_pipe_makes_the_buffer(buffer_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join([LINE % (i, i) for i in range(3)]) + "\n\n"
    piped(monkeypatch, text)
    report = insert_jsonl("-", buffer_url, "new")
    buffer = ReplayBuffer(buffer_url, "new", create=False)
    assert (report.n_stored, [row.exp_data.state for row in buffer]) == (
        3, [{"x": 0}, {"x": 1}, {"x": 2}],
    )  # fmt: skip
    assert buffer.sample(1)[0].exp_data.reward_t == 0.5
    piped(monkeypatch, text)  # new steps each time
    assert insert_jsonl("-", buffer_url, "new").n_stored == 3


def test_a_missing_buffer_gets_fields_for_other_keys(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, '{"obs": [[1.5, 2]], "n": 3, "flag": true, "action": 1}\n')
    insert_jsonl("-", sqlite_url, "new")
    buffer = ReplayBuffer(sqlite_url, "new", create=False)
    shown = {name: str(spec) for name, spec in buffer.fields.items()}
    assert shown == {"obs": "float64(1, 2)", "n": "int64", "flag": "bool"}
    (row,) = list(buffer)
    assert (row.fields["obs"].tolist(), row.exp_data.actions) == ([[1.5, 2.0]], [1])


def test_numbers_are_those_of_python(buffer_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    big = [2**63, -(2**63) - 1, 2**64 - 1, 2**64, 123456789012345678901234567890]
    state = {"big": big, "odd": [math.nan, math.inf, -math.inf], "text": "NaN"}
    line = json.dumps({"state": state, "reward": math.nan})
    piped(monkeypatch, "\ufeff" + line + "\n" + line)
    assert insert_jsonl("-", buffer_url, "new").n_stored == 2
    for row in ReplayBuffer(buffer_url, "new", create=False):
        assert repr(row.exp_data.state) == repr(state)
        assert repr(row.exp_data.reward_t) == "nan"


@pytest.mark.thorough
def test_types_follow_from_the_first_lines(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [
        {"obs": [1, 2], "n": 1, "some": [1]},
        {"obs": [1.5, 2], "n": 2, "some": []},
    ]
    last = {"obs": [1, 2], "n": 0.5, "some": [1, 2]}
    rows = [*given, *[given[1]] * 1_000, last]
    piped(monkeypatch, "\n".join(json.dumps(row) for row in rows))
    with pytest.raises(FieldError, match=r"line 1,003: field 'n': .*`sqlbuffer create --config`"):
        insert_jsonl("-", sqlite_url, "new")
    buffer = ReplayBuffer(sqlite_url, "new", create=False)
    shown = {name: str(spec) for name, spec in buffer.fields.items()}
    assert shown == {"obs": "float64(2,)", "n": "int64", "some": "int64(-1,)"}
    assert len(buffer) == 1_002


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"reward": 1e400}', "line 3: no JSON .*number is infinity.*; write null"),
        ('{"reward": [NaN, 1e400]}', r"line 3: no float holds the number 1e400; write null, or {"),
        ("{", r"line 3: no JSON \("),
        ("[1]", r"line 3: expected a JSON object with the values of a step, got \[1\]"),
        ('{"rewrd": 1}', r"line 3: unknown key 'rewrd' \(did you mean reward\?\)"),
        (
            '{"reward": 1, "reward_t": 1}',
            "line 3: it has both",
        ),
        ('{"reward": "much"}', r"line 3: reward_t: expected a number, .* got 'much'"),
        ('{"state": {"$array": 5}}', "line 3: a value is tagged wrongly"),
        ('{"reward": {"$float": 3}}', "line 3: a value is tagged wrongly"),
        ('{"step": 1.5}', "line 3: step: expected an integer"),
    ],
)
def test_a_bad_line_is_named_and_only_those_before_it_in_a_pipe_are_stored(
    buffer_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bad: str, message: str
) -> None:
    buffer = ReplayBuffer(buffer_url, "old")
    text = "\n".join([LINE % (1, 1), LINE % (2, 2), bad, LINE % (4, 4)])
    piped(monkeypatch, text)
    with pytest.raises((FileImportError, FieldError), match=message) as error:
        insert_jsonl("-", buffer_url, "old")
    assert "steps stored before it: 2" in str(error.value)
    assert [row.exp_meta.step for row in buffer] == [1, 2]
    # Nothing is stored of a file, and no buffer is made.
    path = tmp_path / "steps.jsonl"
    path.write_text(text)
    piped(monkeypatch, text)
    for source, name in [(path, "old"), ("-", "new")]:
        with pytest.raises((FileImportError, FieldError), match=message) as error:
            insert_jsonl(source, buffer_url, name)
        assert "steps stored before it: 0" in str(error.value)
    assert ReplayBuffer.list(buffer_url) == ["old"]
    assert len(buffer) == 2


# Values of a key in the first lines, and the field that holds all of them; None: no field does.
FIRST_VALUES: list[tuple[list[Any], str | None]] = [
    ([[10], [11, 12]], "int64(-1,)"),
    ([[1.5], [], [2]], "float64(-1,)"),
    ([[], [True]], "bool(-1,)"),
    ([[[1, 2]], [[3, 4], [5, 6]]], "int64(-1, 2)"),
    ([[[1], [2]], [[3, 4], [5, 6]]], "int64(2, -1)"),
    ([[[1, 2]], []], "int64(-1, 2)"),
    ([[[], []], [[3], [5]]], "int64(2, -1)"),
    ([[[1, 2]], [[3, 4.5]]], "float64(1, 2)"),
    ([True, 3], "int64"),
    ([3, None, 2**63], None),
    ([3, 2**63], "uint64"),
    ([-3, 2**63], None),
    ([1, [1]], None),
    ([[[1, 2]], [[3], [4]]], None),
    ([[[1], [2, 3]]], None),
    ([1, "one"], None),
]


def test_a_new_field_holds_the_values_of_all_first_lines(
    buffer_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "steps.jsonl"
    made = []
    for i, (values, spec) in enumerate(FIRST_VALUES):
        text, name = "".join(json.dumps({"x": value}) + "\n" for value in values), f"case {i}"
        path.write_text(text)
        piped(monkeypatch, text)
        source = "-" if buffer_url.startswith("sqlite") else path
        if spec is None:
            with pytest.raises((FileImportError, FieldError), match=r"line \d: .*'x'"):
                insert_jsonl(source, buffer_url, name)
            continue
        assert insert_jsonl(source, buffer_url, name).n_stored == len(values)
        with ReplayBuffer(buffer_url, name, create=False) as buffer:
            assert str(buffer.fields["x"]) == spec
            assert [row.fields["x"].tolist() for row in buffer] == values
        made.append(name)
    assert sorted(ReplayBuffer.list(buffer_url)) == sorted(made)


@pytest.mark.parametrize(
    "lines_of_file", ['{"x": [10]}\n{"x": [11', "{", '{"x": [10]}\n{"x": "text"}']
)
def test_a_file_that_is_refused_makes_no_database(
    sqlite_url: str, tmp_path: Path, lines_of_file: str
) -> None:
    (tmp_path / "steps.jsonl").write_text(lines_of_file)
    with pytest.raises((FileImportError, FieldError), match=r"line \d: "):
        insert_jsonl(tmp_path / "steps.jsonl", sqlite_url, "new")
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


@pytest.mark.thorough
def test_lines_of_a_pipe_stay_in_a_new_buffer_after_the_first_ones(
    buffer_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They cannot be read again, as lines of a file can."""
    text = "\n".join([LINE % (i, i) for i in range(1_001)] + ["{"])
    piped(monkeypatch, text)
    with pytest.raises(FileImportError, match=r"line 1,002: .*; steps stored before it: 1,001"):
        insert_jsonl("-", buffer_url, "piped")
    assert len(ReplayBuffer(buffer_url, "piped", create=False)) == 1_001
    (tmp_path / "steps.jsonl").write_text(text)
    with pytest.raises(FileImportError, match=r"line 1,002: .*; steps stored before it: 0"):
        insert_jsonl(tmp_path / "steps.jsonl", buffer_url, "filed")
    assert ReplayBuffer.list(buffer_url) == ["piped"]


@pytest.mark.parametrize(
    ("spec", "whole", "bad"),
    [
        (("float32", (2,)), [1, 2], [1, 2, 3]),
        ("S2", "ab", "\u0416"),
        ("longdouble", 1.5, "text"),
        ("longdouble", 1.5, {}),
    ],
)
def test_a_value_that_a_field_cannot_hold_names_its_line(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, spec: Any, whole: Any, bad: Any
) -> None:
    buffer = ReplayBuffer(sqlite_url, "typed", fields={"x": spec})
    piped(monkeypatch, json.dumps({"x": whole}) + "\n" + json.dumps({"x": bad}) + "\n")
    with pytest.raises(
        FieldError, match=r"line 2: field 'x': expected .*; steps stored before it: 1"
    ):
        insert_jsonl("-", sqlite_url, "typed")
    assert len(buffer) == 1


def test_typed_steps_of_an_episode_that_has_ended_are_named(
    buffer_url: str, tmp_path: Path
) -> None:
    buffer = ReplayBuffer(buffer_url, "typed", fields={"x": "float32"})
    buffer.store_episode({"x": [0.5]}, episode_id="e", task_id="t")
    (tmp_path / "steps.jsonl").write_text('{"x": 1.5, "episode_id": "e", "task_id": "t"}\n')
    with pytest.raises(FileImportError, match=r"lines 1 to 1: episode 'e' .* before them: 0"):
        insert_jsonl(tmp_path / "steps.jsonl", buffer_url, "typed")
    assert len(buffer) == 1


def test_a_missing_file_is_named(sqlite_url: str, tmp_path: Path) -> None:
    with pytest.raises(FileImportError, match="there is no file"):
        insert_jsonl(tmp_path / "nothing", sqlite_url)


@pytest.mark.thorough
def test_commands_pass_steps_through_a_pipe(buffer_url: str, tmp_path: Path) -> None:
    source = json_rows(buffer_url, "source", max_capacity=1_000)
    program = f'{sys.executable} -c "from sqlbuffer.cli import app; app()"'
    env = {**os.environ, "SOURCE": buffer_url, "TARGET": f"sqlite:///{tmp_path}/copy.db"}
    done = subprocess.run(
        f'{program} export "$SOURCE" - -f jsonl | {program} insert "$TARGET" -b copy -',
        shell=True, capture_output=True, text=True, env=env, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"appended standard input to 'copy' in {env['TARGET']}" in done.stdout
    assert "exported 'source'" in done.stderr
    copy = ReplayBuffer(env["TARGET"], "copy", create=False)
    assert comparable([row.exp_data for row in copy]) == comparable(
        [row.exp_data for row in source]
    )


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "made_by_the_first_line"])
def test_lines_of_a_slow_pipe_are_stored_before_it_ends(sqlite_url: str, is_there: bool) -> None:
    ReplayBuffer(sqlite_url, "slow" if is_there else "other", create=True).close()
    program = "from sqlbuffer.cli import app; app()"
    command = [sys.executable, "-c", program, "insert", sqlite_url, "-b", "slow", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write((LINE % (1, 1)).encode() + b"\n")
        process.stdin.flush()
        wait_until(lambda: "slow" in ReplayBuffer.list(sqlite_url), "the buffer")
        buffer = ReplayBuffer(sqlite_url, "slow")
        wait_until(lambda: len(buffer) == 1, "the first line is stored")
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_line_of_many_parts_is_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlbuffer.interchange.jsonl._CHUNK_BYTES", 7)
    given = [b"one", b"", b"x" * 1_000, b"exactly", b"", b"the last one"]
    for end in (b"", b"\n"):
        reader, writer = os.pipe()
        os.write(writer, b"\n".join(given) + end)
        os.close(writer)
        with open(reader) as stream:
            monkeypatch.setattr("sys.stdin", stream)
            assert list(lines_of("-")) == given


def test_ids_of_other_steps_are_an_error_or_left_out_or_get_a_prefix(buffer_url, tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text(
        '{"id": "a", "task_id": "t", "episode_id": "e", "reward": 1.0}\n'
        '{"id": "b", "task_id": "t", "episode_id": "e", "reward": 2.0}\n'
    )
    with ReplayBuffer(buffer_url, "default") as buffer:
        buffer.add(id="a", task_id="t", reward=9.0)
        with pytest.raises(FileImportError, match=r"1 id of these: 'a'.*--prefix.*--on-conflict"):
            insert_jsonl(path, buffer_url)
        report = insert_jsonl(path, buffer_url, on_conflict="skip")
        assert (report.n_stored, report.n_duplicates, report.n_conflicts) == (0, 1, 1)
        for n_stored in (2, 0):
            report = insert_jsonl(path, buffer_url, prefix="run1/")
            assert (report.n_stored, report.n_duplicates) == (n_stored, 2 - n_stored)
        merged = [row for row in buffer if row.id.startswith("run1/")]
        assert [row.exp_meta.episode_id for row in merged] == ["run1/e"] * 2


def test_lines_without_an_id_from_standard_input_are_named_as_such(
    buffer_url, monkeypatch, tmp_path
):
    lines = '{"task_id": "t", "reward": 1.0}\n{"id": "a", "task_id": "t", "reward": 2.0}\n'
    path = tmp_path / "steps.jsonl"
    path.write_text(lines)
    assert insert_jsonl(path, buffer_url).n_without_id == 0  # a file gives them ids
    piped(monkeypatch, lines)
    report = insert_jsonl("-", buffer_url)
    assert "1 line had no id, and the same lines would be stored again" in str(report)
