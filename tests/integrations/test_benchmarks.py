"""The benchmarks measure what they say; tests/nightly runs all of them at a tiny size."""

import json
from pathlib import Path

import numpy as np
import pytest

from sqlbuffer import RandomSampler, ReplayBuffer
from sqlbuffer.encoding.records import encode_rows
from tests.benchmarks import __main__ as command
from tests.benchmarks.arrays import FIELDS, steps
from tests.benchmarks.chunk_driver import again, bare_chunks
from tests.benchmarks.driver import bare
from tests.benchmarks.measure import Ratio, ratio_of
from tests.benchmarks.report import (
    BEGIN,
    END,
    HEADER,
    Figure,
    aligned,
    sections,
    short,
    table,
    write_between_markers,
)
from tests.benchmarks.rows import RowMaker

BOTH = {"SQLite", "PostgreSQL"}
EVERY = frozenset({*BOTH, "memory"})
# How the line of each measurement begins, and the databases that it is made on.
LINES = {
    "`store_batch` of 1,000 rows vs the bare driver": BOTH,
    "inserting at full capacity vs unlimited": BOTH,
    "`store_batch` at full capacity by rows a batch": BOTH,
    "`sample(256)` at {}: times faster than `ORDER BY random()`": BOTH,
    "`sample(256)` at {} vs at": BOTH,
    "`sample_arrays(256)` at {} vs at": BOTH,
    "`mirror.sample_arrays(256)` at {} vs at": BOTH,
    "`sample(256)` of one task vs unfiltered": BOTH,
    "`sample(256)` with a filter that matches 1 %": BOTH,
    "`sample` by rows a batch": BOTH,
    "`sample_tasks` of 16 tasks of 50 rows": BOTH,
    "insert behind a snapshot": BOTH,
    "sample behind a snapshot": BOTH,
    "table and indexes after 10 turnovers by 1 writer": {"PostgreSQL"},
    "table and indexes after 10 turnovers by 4 writers": {"PostgreSQL"},
    "8 writers of 64-row batches": BOTH,
    "8 writers of 64-step batches": BOTH,
    "`extend` of 1,000 steps by 8 writers vs 8 bare drivers": BOTH,
    "`append` of one step after the other by 8 writers": BOTH,
    "`extend` of 1,000 steps vs the bare driver": BOTH,
    "`extend` of 1,000 steps, ten in a row vs the bare driver": BOTH,
    "`extend` of 1,000 steps: steps a second over": BOTH,
    "`extend` of 1,000 steps, ten in a row: steps a second over": BOTH,
    "`extend` of 1,000 steps of 64 environments in turn vs the bare driver": BOTH,
    "`extend` of 1,000 steps of 64 environments in turn, ten in a row vs the bare driver": BOTH,
    "`extend` of 1,000 steps of 64 environments in turn: steps a second over": BOTH,
    "`extend` of 1,000 steps of 64 environments in turn, ten in a row: steps a second over": BOTH,
    "`extend` of 1,000 steps that all have different tasks": BOTH,
    "`append` of one step after the other, until": BOTH,
    "`record` of 64 parallel environments": BOTH,
    "`sample_transitions(256, n_step=5)` vs `sample_arrays(256)`": BOTH,
    "`sample_arrays(256)` of small steps vs the bare driver's lookup of rows, {}": BOTH,
    "`sample_arrays(256)` of small steps, zstd, vs the bare driver's lookup of rows, {}": BOTH,
    "`sample_arrays(256)` of frames of 28 KB vs the bare driver's lookup": BOTH,
    "`sample_arrays(256)` of frames of 28 KB, zstd, vs the bare driver's lookup": BOTH,
    "`sample_arrays(256)` of one step in 1,000 from the second draw on": BOTH,
    "`ReplayBuffer('sqlite://')` in a fresh process": {"SQLite"},
    "`sqlbuffer ls` in a fresh process": {"SQLite"},
    "32 stacks of 4 (84, 84) frames and those after them from a mirror": BOTH,
    "a mirror next to 5,000 steps a second": BOTH,
    "commit by another process to drawable from a mirror": BOTH,
    "first fill of a mirror: steps a second over": BOTH,
    "`mirror.sample_arrays(256)` next to that writer": BOTH,
    "`mirror.sample_arrays(256)`: times faster than from the buffer": BOTH,
    "`mirror.sample_arrays(256)` vs numpy's gather": BOTH,
    "`mirror.sample_transitions(256, n_step=5)` vs numpy's gather": BOTH,
    "256 by priority from a mirror, and their new priorities: times faster": BOTH,
    "256 by priority from a mirror, and their new priorities, while those are written": BOTH,
    "a buffer to Parquet: steps a second over": BOTH,
    "a buffer restored from Parquet: steps a second over": BOTH,
    "`import_arrays` of a dict of arrays vs `store_episode`": BOTH,
    "`import_arrays` of an `.npz` file vs `store_episode`": BOTH,
    **{
        f"`{call}` of {n} environments vs `store_episode`": BOTH
        for call in ("vector_writer", "record")
        for n in (64, 512)
    },
    "room on disk of small steps vs their raw bytes, {}": BOTH,
    "tables of small steps after 10 turnovers": {"PostgreSQL"},
    "tables of frames of 28 KB after 10 turnovers": {"PostgreSQL"},
    "a draw of 64 after each step vs after each 4th": BOTH,
    "steps in a chunk of that loop over 32": BOTH,
    "transitions of 4 stacked (84, 84) frames": BOTH,
    "trajectories, a batch of 16 x 500 steps": BOTH,
    "fragments of 8 MB written vs a plain file": BOTH,
    "fragments of 8 MB read vs a plain file": BOTH,
    "choosing 64 fragments without payloads": BOTH,
    "`store_batch` of 1,000 rows with priorities vs without": BOTH,
    "`sample(256)` by priority at {}: times faster than a race": BOTH,
    "`sample(256)` by priority at {} vs at": BOTH,
    "`update_priorities` of 256 at {} vs the bare driver's update": BOTH,
    "`sample_arrays(256)` with `max_use` vs without, {}": BOTH,
    "`sample_arrays(256)` with `max_staleness` vs without, {}": BOTH,
    "`sample(256)` with 1 % of the rows annotated vs none, {}": BOTH,
    "`sample(256)` with 1 % of the rows annotated vs none, fewer": BOTH,
    "`sample_arrays(256)` with 1 % of the rows annotated vs none, {}": BOTH,
    "`sample_arrays(256)` with 1 % of the rows annotated vs none, fewer": BOTH,
    "from a commit to its batch": BOTH,
    "8 consumers that lease 8 of 20,000 rows": {"PostgreSQL"},
    "`store` of 1,000 steps, an episode, vs memmap-replay-buffer": BOTH,
    "`store_episode` of 1,000 steps vs memmap-replay-buffer": BOTH,
    "`dataloader`: trajectories, batches of 4, first pass, vs": BOTH,
    "`dataloader`: trajectories, batches of 4, later passes, vs": BOTH,
    "`dataloader`: steps, batches of 256, vs": BOTH,
    "`dataloader`: 5-step transitions, batches of 256, vs": BOTH,
    "`fetch_fragments(64)` of 4,800 chunks vs of 100": BOTH,
    "`add_fragment` of 8 MB vs a plain file with fsync": BOTH,
    "`load_fragment` of 8 MB vs a plain file": BOTH,
    "`push` of a list of 100, naive, vs DI-engine": BOTH,
    "`push` of 100 items one by one, naive, vs DI-engine": BOTH,
    "`sample(64)`, naive, vs DI-engine": BOTH,
    "`push` of a list of 100, advanced, vs DI-engine": BOTH,
    "`push` of 100 items one by one, advanced, vs DI-engine": BOTH,
    "`sample(64)`, advanced, vs DI-engine": BOTH,
    "`update` of 64, advanced, vs DI-engine": BOTH,
    "private: `push` of a list of 100, naive, vs DI-engine": {"memory"},
    "private: `push` of 100 items one by one, naive, vs DI-engine": {"memory"},
    "private: `sample(64)`, naive, vs DI-engine": {"memory"},
    "private: `push` of a list of 100, advanced, vs DI-engine": {"memory"},
    "private: `push` of 100 items one by one, advanced, vs DI-engine": {"memory"},
    "private: `sample(64)`, advanced, vs DI-engine": {"memory"},
    "private: `update` of 64, advanced, vs DI-engine": {"memory"},
    "first byte of the slowest page over 200 ms, {}": BOTH,
    "last byte of a conversation of 2 MB over 1 s": BOTH,
    "2 writers next to 5 clients of the page vs alone": BOTH,
    "SQL that reads summaries: the slowest question over 1 s, rows, {}": BOTH,
    "SQL that reads summaries: the slowest question over 1 s, typed steps, {}": BOTH,
    "SQL that reads every step: the slowest question over 10 s, rows, {}": BOTH,
    "SQL that reads every step: the slowest question over 10 s, typed steps, {}": BOTH,
}

# Lines that a run on a machine with a browser has.
PAINTED = "paint of the slowest page over 1 s, {}"


def lines_of(text: str) -> list[list[str]]:
    """Return the cells of each line of the table in a text, without its head."""
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    assert tuple(cells[0]) == HEADER
    return cells[2:]


def assert_complete(
    text: str, rows: str, verdicts: set[str], databases: frozenset[str] = EVERY
) -> None:
    """Assert that the table has one line for each measurement and database, with figures in it."""
    wanted = {begin: own & databases for begin, own in LINES.items() if own & databases}
    all_lines = lines_of(text)
    lines = [line for line in all_lines if not line[0].startswith(PAINTED.format(rows))]
    assert len(all_lines) - len(lines) in (0, len(BOTH & databases))
    for begin, own in wanted.items():
        found = [line for line in lines if line[0].startswith(begin.format(rows))]
        assert sorted(line[1].partition(",")[0] for line in found) == sorted(own), begin
    assert len(lines) == sum(map(len, wanted.values()))
    for _, _, measured, target, verdict, absolute in all_lines:
        assert absolute
        if target != "reported":
            assert measured
            assert verdict in verdicts


def test_the_documented_figures_are_those_of_a_full_run():
    stored = json.loads(command.DOCUMENT.with_suffix(".json").read_text(encoding="utf-8"))
    (lines,) = stored["figures"]["tables"]
    figures = aligned([HEADER, *([*line.values()] for line in lines)])
    assert_complete(figures, "1,000,000 rows", {"yes", "**no**"})
    assert "reduced" not in "".join(stored["figures"]["facts"])


def test_the_page_has_a_line_for_each_target_and_marks_those_that_are_missed():
    figures = [
        Figure("inserts", "SQLite, synchronous=NORMAL", "5 ms", Ratio(0.4, 0.3, 0.45), 0.5),
        Figure("inserts", "PostgreSQL, synchronous_commit=on", "4 ms", Ratio(0.8, 0.7, 0.9), 0.4),
        Figure("draws", "SQLite, synchronous=NORMAL", "32: 2.0 ms; 64: 3 ms (2 ms to 4 ms)"),
        Figure("pushes", "memory, private", "1 ms", Ratio(3.0, 3.0, 3.0), 2.0, at_most=True),
    ]
    (section,) = sections(f"{BEGIN}\n- Machine: two cores.\n\n{table(figures)}\n{END}").values()
    assert short(section).splitlines() == [
        "- Machine: two cores.",
        "",
        "| Measurement | Target | SQLite | PostgreSQL |",
        "| --- | --- | --- | --- |",
        "| inserts | ≥ 0.5 or ≥ 0.4 | **0.40** | 0.80 |",
        "",
        "| Measurement | Target | memory |",
        "| --- | --- | --- |",
        "| pushes | ≤ 2 | **3.00** |",
    ]


def test_the_bare_driver_writes_what_the_library_writes(buffer_url):
    rows = RowMaker().batch(120)
    with ReplayBuffer(buffer_url, max_capacity=100) as buffer:
        driver = bare(buffer_url)
        driver.write(*driver.prepared(encode_rows(rows)))
        driver.close()
        assert list(buffer) == rows[20:]
        assert buffer.store_batch(rows[20:]).duplicates == 100
        assert buffer.store_batch(RowMaker(120).batch(1)).inserted == 1
        assert len(buffer) == 100


def test_the_bare_driver_writes_the_chunks_that_the_library_has_written(buffer_url):
    columns = {**steps(np.random.default_rng(0), 100), "reward": np.arange(100.0)}
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=150) as buffer:
        buffer.extend(columns, task_id=[f"task-{i % 2}" for i in range(100)])
        driver = bare_chunks(bare(buffer_url))
        stored = driver.newest(100)
        for _ in range(2):
            driver.write(*again(stored))
        driver.close()
        found = list(buffer.get_all())
        assert [row.seq for row in found] == list(range(151, 301))
        tasks = [row.exp_meta.task_id for row in found]
        assert tasks == ["task-1"] * 50 + ["task-0"] * 50 + ["task-1"] * 50
        drawn = buffer.sample_arrays(150, sampler=RandomSampler(replace=False))
        assert np.array_equal(drawn.obs, columns["obs"][drawn.reward.astype(int)])
        assert buffer.extend(columns).inserted == 100
        assert len(buffer) == 150


def test_rows_that_were_stored_can_be_made_new(buffer_url):
    maker = RowMaker()
    rows = maker.batch(60)
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch(rows)
        assert buffer.store_batch(maker.renumber(rows)).inserted == 60
        assert [row.exp_meta.step for row in buffer] == list(range(120))


@pytest.mark.parametrize(
    ("value", "target", "at_most", "met"),
    [
        (0.5, 0.5, False, True),
        (0.49, 0.5, False, False),
        (1.6, 1.6, True, True),
        (1.7, 1.6, True, False),
        (0.1, None, False, None),
    ],
)
def test_a_target_is_met_by_the_ratio_alone(value, target, at_most, met):
    figure = Figure("what", "where", "1 ms", Ratio(value, 0.0, 9.0), target, at_most)
    assert figure.met is met


def test_a_ratio_is_the_median_of_the_rounds():
    assert ratio_of([4.0, 1.0, 2.0, 100.0, 3.0]) == Ratio(3.0, 2.0, 4.0)


def test_a_document_without_markers_is_left_alone(tmp_path: Path):
    document = tmp_path / "benchmarks.md"
    document.write_text(f"# Title\n\n{END}\n")
    with pytest.raises(ValueError, match="begin figures"):
        write_between_markers(document, table([Figure("draws", "SQLite", "1 ms")]))
    assert document.read_text() == f"# Title\n\n{END}\n"
