import multiprocessing
import re
import shlex
import signal
import subprocess
import sys
from decimal import Decimal
from io import StringIO

import httpx
import pytest
from rich.console import Console

from sqlbuffer import ReplayBuffer, demo
from sqlbuffer.cli import output
from sqlbuffer.cli.demo_display import QUESTIONS, DemoProgress, print_commands
from sqlbuffer.demo import DemoPlan, Progress, Report, Writers, _check, _check_whole
from sqlbuffer.errors import SQLBufferError, StorageUnreachableError
from tests.cli.conftest import start
from tests.conftest import KINDS
from tests.support.array_rows import make_array_row
from tests.support.processes import FRESH

PROGRAM = f"""#!{sys.executable}
from sqlbuffer.cli import app
if __name__ == "__main__":
    app()
"""
SHORT = ("--writers", "2", "--episodes", "6", "--capacity", "100", "--batch-size", "32")


@pytest.fixture(autouse=True)
def warm_writers(monkeypatch):
    """Fork the writers from a process that has imported what they need: it takes each 0.7 s."""
    context = multiprocessing.get_context(FRESH)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)


def cells(output_, header):
    """Return the first row of the table with this column."""
    lines = [[cell.strip() for cell in re.split("[│┃]", line)] for line in output_.splitlines()]
    index = next(i for i, line in enumerate(lines) if header in line)
    return dict(zip(lines[index], lines[index + 2], strict=True))


def number(text):
    return int(text.replace(",", ""))


@pytest.mark.thorough
@pytest.mark.slow
def test_the_demo_counts_what_it_did_and_can_be_repeated(run, database_url):
    results = [run("demo", "--url", database_url, *SHORT) for _ in range(2)]
    counts = [cells(result.output, "rows written") for result in results]
    written = number(counts[0]["rows written"])
    assert [result.exit_code for result in results] == [0, 0]
    assert number(counts[1]["rows written"]) == written > 100
    for count in counts:
        assert count["rows held"] == count["capacity"] == "100"
        assert number(count["evicted"]) == written - 100
        assert count["tasks written"] == "12"
    with ReplayBuffer(database_url, name="demo", create=False) as buffer:
        assert len(buffer) == buffer.size() == buffer.max_capacity == 100
        tasks = {row.exp_meta.task_id for row in buffer}
    assert counts[1]["tasks held"] == str(len(tasks))


@pytest.mark.thorough
def test_the_demo_shows_progress_speeds_and_the_questions_of_an_analyst(run, database_url):
    text = run("demo", "--url", database_url, *SHORT).output
    assert "12 of 12 episodes" in text
    speed = cells(text, "p99 ms")
    assert speed["call"] == "store_batch(episode)"
    assert speed["calls"] == "12"
    for question, statement in QUESTIONS.items():
        assert f"-- {question}\n{statement};\n" in text
    assert "Return per task" in text
    assert "secret" not in text
    assert "sqlbuffer info" in text


def test_the_demo_makes_a_file_in_a_temporary_folder_and_says_where(run, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run("demo", *SHORT)
    assert result.exit_code == 0
    (path,) = tmp_path.glob("sqlbuffer-demo-*/replay.db")
    assert f"sqlbuffer info sqlite:///{path}\n" in result.output
    assert run("info", f"sqlite:///{path}").exit_code == 0


@pytest.mark.thorough
@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_at_its_end_run_as_they_are_printed(make_database_url, tmp_path, kind):
    """By the path of a program that no folder of PATH has, as after `make demo`."""
    folder = tmp_path / "it's a checkout"
    program = folder / ".venv" / "bin" / "sqlbuffer"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    url = make_database_url(kind) if kind == "postgresql" else f"sqlite:///{folder}/re play.db"

    def shell(line: str) -> str:
        return subprocess.run(
            ["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=True
        ).stdout

    text = shell(f".venv/bin/sqlbuffer demo --url {shlex.quote(url)} {' '.join(SHORT)}")
    after = text.partition("Look into it:\n")[2].splitlines()
    commands = [line.strip() for line in after]
    assert [shlex.split(line)[1] for line in commands[:2]] == ["info", "sql"]
    assert [shlex.split(line)[0] for line in commands[:2]] == [str(program)] * 2
    for line in commands:
        assert "cartpole-" in shell(line) or "demo" in shell(line)


def test_a_command_is_not_broken_at_the_width_of_the_terminal(tmp_path):
    stream = StringIO()
    url = f"sqlite:///{tmp_path}/{'long' * 20}.db"
    print_commands(Console(file=stream, force_terminal=True, width=40, highlight=False), url)
    _, _, *lines = stream.getvalue().splitlines()
    assert lines[0].endswith(f" info {url}")
    assert lines[1].endswith(f" sql {url} 'SELECT * FROM v_tasks LIMIT 5'")
    stream = StringIO()
    print_commands(Console(file=stream), "postgresql://me:secret@db.internal/replay")
    assert "set PGPASSWORD first" in stream.getvalue()
    assert "secret" not in stream.getvalue()


@pytest.mark.thorough
def test_the_demo_leaves_other_buffers_alone(run, sqlite_url):
    with ReplayBuffer(sqlite_url, name="mine") as buffer:
        buffer.store(make_array_row())
        assert run("demo", "--url", sqlite_url, *SHORT).exit_code == 0
        assert len(buffer) == 1


def test_the_demo_without_gymnasium_names_the_extra(run, monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    result = run("demo", *SHORT)
    assert result.exit_code == 1
    assert "pip install '.[demo]'` in the checkout" in result.stderr


def test_the_demo_refuses_a_database_in_memory(run):
    result = run("demo", "--url", "sqlite://", *SHORT)
    assert result.exit_code == 2
    assert "name a file" in result.stderr


def test_an_error_in_a_writer_reaches_the_parent_by_its_cause(tmp_path):
    with (
        Writers(DemoPlan(f"sqlite:///{tmp_path}/missing/replay.db", writers=1)) as writers,
        pytest.raises(StorageUnreachableError, match="writer 0: "),
    ):
        consume(writers)


def test_a_writer_that_dies_ends_the_run(sqlite_url):
    with Writers(DemoPlan(sqlite_url, writers=2, episodes=5000)) as writers:
        (process, *_) = multiprocessing.active_children()
        process.kill()
        with pytest.raises(SQLBufferError, match=f"{process.name} died with exit code -9"):
            consume(writers)
    assert multiprocessing.active_children() == []


def consume(writers):
    while writers.running:
        list(writers.reports(1.0))


@pytest.mark.parametrize("change", [{"held": 9}, {"written": 21}])
def test_counts_that_do_not_add_up_are_an_error(change):
    plan = DemoPlan("sqlite:///x.db", writers=1, episodes=2, capacity=20)
    report = Report(written=10, held=10)
    report.inserts.latencies_s.extend([0.1, 0.1])
    _check(plan, report)
    for name, value in change.items():
        setattr(report, name, value)
    with pytest.raises(SQLBufferError, match="should hold"):
        _check(plan, report)


def test_a_task_with_a_hole_or_without_an_end_is_an_error():
    rows = [make_array_row(step=step) for step in range(3)]
    with pytest.raises(SQLBufferError, match="steps missing"):
        _check_whole(rows)
    rows[-1].exp_data.terminated = True
    _check_whole(rows)
    _check_whole(rows[1:])
    with pytest.raises(SQLBufferError, match="steps missing"):
        _check_whole([rows[0], rows[2]])


def test_the_same_seed_plays_the_same_episode():
    environment = demo.make_environment()
    names = {"task_id": "t", "agent_id": "a", "model_version": 2}
    first, second, other = (demo.play(environment, **names, seed=seed) for seed in (1, 1, 2))
    assert [row.exp_data for row in first] == [row.exp_data for row in second]
    assert [row.exp_data for row in first] != [row.exp_data for row in other]
    assert first[-1].exp_data.terminated
    assert [row.exp_meta.step for row in first] == list(range(len(first)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "true"),
        (12345, "12,345"),
        (0.12345, "0.1235"),
        (98765.4, "98,765"),
        (Decimal("1.50000"), "1.5"),
    ],
)
def test_cells_are_written_for_people(value, text):
    assert output.shown(value) == text


def test_a_terminal_gets_bars(tmp_path):
    plan = DemoPlan(f"sqlite:///{tmp_path}/replay.db", writers=1, episodes=4)
    stream = StringIO()
    with DemoProgress(Console(file=stream, force_terminal=True, width=200), plan) as progress:
        progress.update(Progress(episodes=3, rows=1234, batches=5))
    assert "3/4" in stream.getvalue()
    assert "1,234 rows, 5 batches" in stream.getvalue()


@pytest.mark.thorough
@pytest.mark.slow
def test_the_demo_is_in_the_browser_while_it_runs_and_until_ctrl_c(schema_url):
    process = start("demo", "--url", schema_url, "--ui", "--no-open", *SHORT)
    try:
        address = process.stdout.readline().removeprefix("the page: ").strip()
        with httpx.Client(follow_redirects=True) as client:
            assert ">demo</a>" in client.get(address).text
            lines = list(iter(process.stdout.readline, "the page stays there until Ctrl-C\n"))
            assert any("rows written" in line for line in lines)
            assert ">100</td>" in client.get(address).text.replace("\n", "")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            assert process.stderr.read() == ""
            with pytest.raises(httpx.ConnectError):
                client.get(address)
    finally:
        process.kill()
        process.communicate()


def test_the_demo_ends_where_there_can_be_no_page(monkeypatch, run, sqlite_url):
    monkeypatch.setattr("sqlbuffer.cli.demo._COMMAND", "raise SystemExit(7)")
    result = run("demo", "--url", sqlite_url, "--ui", "--no-open", *SHORT)
    assert (result.exit_code, result.stdout) == (7, "")
