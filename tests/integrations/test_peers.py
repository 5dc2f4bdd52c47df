"""Other buffers are measured where they are installed; how fast anything is is not asserted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from tests.benchmarks import peer_priorities
from tests.benchmarks import peers as command
from tests.benchmarks.peer_buffers import EPISODE, GAMMA, N_STEP, SQLBuffer, transitions
from tests.benchmarks.peer_priorities import HEADER as PRIORITIES
from tests.benchmarks.peer_priorities import PRIORITIZED, MirrorPriorities, SQLPriorities
from tests.benchmarks.report import HEADER as FIGURES
from tests.benchmarks.report import short, shown_time, shown_times

NAMES = [peer.name for peer in command.PEERS]
PRIORITIZED_NAMES = [peer.name for peer in PRIORITIZED]


def tables_of(text: str) -> dict[tuple[str, ...], list[list[str]]]:
    """Return the cells of the lines of each table in a text, by its head."""
    tables: dict[tuple[str, ...], list[list[str]]] = {}
    head: tuple[str, ...] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if head is None:
            head = tuple(cells)
            tables[head] = []
        else:
            tables[head].append(cells)
    return {head: lines[1:] for head, lines in tables.items()}


BOTH_PRIORITIES = f"{command.BEGIN_PRIORITIES}\nearlier\n{command.END_PRIORITIES}"


def missing(*_: Any) -> Any:
    raise ImportError("No module named 'peer'")


def test_without_any_peer_ours_is_measured_on_both_databases(postgres_server, capsys, tmp_path):
    document = tmp_path / "benchmarks.md"
    places = f"{command.BEGIN}\nearlier\n{command.END}\n\n{BOTH_PRIORITIES}"
    document.write_text(f"# Before\n\n{places}\n\nAfter.\n")
    command.main(
        ["--rows", "1000", "--write", str(document)],
        postgres_server,
        [replace(peer, open=missing) for peer in command.PEERS],
        [peer._replace(open=missing) for peer in PRIORITIZED],
    )
    printed = capsys.readouterr().out
    tables = tables_of(printed)
    for header, names in ((command.HEADER, NAMES), (PRIORITIES, PRIORITIZED_NAMES)):
        lines = {line[0]: line[1:] for line in tables[header]}
        assert [name for name in lines if not name.startswith("sqlbuffer")] == names
        for name, cells in lines.items():
            if name in names:
                assert cells == ["not installed", *[""] * (len(header) - 2)]
            else:
                assert all(cells), name
    assert [line[1].partition(",")[0] for line in tables[FIGURES]] == ["SQLite", "PostgreSQL"]
    assert "**A reduced run**" in printed
    written = document.read_text()
    stored = json.loads(document.with_suffix(".json").read_text())
    kept = [table for section in stored.values() for table in section["tables"]]
    assert {tuple(rows[0]): [[*row.values()] for row in rows] for rows in kept} == tables
    assert written.index(command.END) < written.index("| Prioritized replay")
    assert "earlier" not in written
    assert written.startswith("# Before\n")
    assert written.endswith("\nAfter.\n")


def test_a_section_that_is_not_measured_stays_in_the_document(capsys, tmp_path):
    document = tmp_path / "benchmarks.md"
    kept = f"{command.BEGIN}\nkept\n{command.END}\n\n"
    document.write_text(f"{kept}{BOTH_PRIORITIES}")
    arguments = ["--rows=1000", "--database=sqlite", "--section=priorities", "--write"]
    command.main([*arguments, str(document)], None, (), ())
    printed, written = capsys.readouterr().out.strip(), document.read_text()
    assert list(tables_of(printed)) == [PRIORITIES]
    stored = json.loads(document.with_suffix(".json").read_text())
    (lines,) = stored["prioritized peers"]["tables"]
    assert list(lines[0].items()) == list(
        zip(PRIORITIES, tables_of(printed)[PRIORITIES][0], strict=True)
    )
    assert "peers" not in stored
    assert written.startswith(kept)
    assert short(stored["prioritized peers"]) in written
    assert "earlier" not in written


def by_priority(priorities: Any, weights: Any, columns: Any) -> dict[str, Any]:
    """Return a batch drawn with these weights, and its importance weights."""
    share = weights / weights.sum()
    rows = np.random.default_rng(0).choice(len(share), 256, p=share)
    exponent = -peer_priorities.ALPHA * peer_priorities.BETA
    return {
        "obs": columns["obs"][rows],
        "row": rows,
        "weights": (priorities[rows] ** exponent).astype(np.float32),
    }


def test_the_rows_of_a_peer_are_compared_with_their_priorities():
    columns = transitions()
    priorities = np.abs(np.random.default_rng(1).standard_normal(EPISODE)) + 0.01
    check = peer_priorities.assert_by_priority
    batch = by_priority(priorities, priorities**peer_priorities.ALPHA, columns)
    check(batch, columns, priorities)
    check({**batch, "weights": 2 * batch["weights"]}, columns, priorities)
    for others in (
        {**batch, "weights": np.ones(256)},
        {**batch, "obs": columns["obs"][:256]},
        by_priority(priorities, np.ones(EPISODE), columns),
    ):
        with pytest.raises(AssertionError):
            check(others, columns, priorities)


@pytest.mark.parametrize("ours", [SQLPriorities, MirrorPriorities])
def test_ours_draws_by_the_priorities_that_were_set_last(buffer_url, ours):
    buffer = ours(buffer_url, EPISODE)
    peer_priorities.fill(buffer, EPISODE)
    buffer.set_priorities(0, np.zeros(EPISODE))
    batch = buffer.draw()
    buffer.refresh(batch, np.full(256, 1e6))
    drawn = buffer.arrays(buffer.draw())["row"]
    buffer.close()
    assert np.isin(drawn, buffer.arrays(batch)["row"]).mean() > 0.95


def test_rows_that_are_no_whole_episodes_are_refused(capsys):
    for rows in ("0", "-1000", "1500", "many"):
        with pytest.raises(SystemExit):
            command.main(["--rows", rows])
        assert "--rows" in capsys.readouterr().err


def drawn(n_step: int, rows: Any) -> dict[str, Any]:
    columns, t = transitions(), np.asarray(rows)
    rewards = sum(GAMMA**k * columns["reward"][t + k] for k in range(n_step))
    return {
        "obs": columns["obs"][t],
        "action": columns["action"][t],
        "reward": rewards,
        "next_obs": columns["next_obs"][t + n_step - 1],
    }


@pytest.mark.parametrize("n_step", [1, N_STEP])
def test_the_transitions_of_a_peer_are_compared_with_those_stored(n_step):
    columns, rows = transitions(), np.arange(256) + 7
    command.assert_stored(drawn(n_step, rows), columns, n_step)
    for name in ("obs", "action", "reward", "next_obs"):
        others = {**drawn(n_step, rows), name: drawn(n_step, rows + 1)[name]}
        with pytest.raises(AssertionError):
            command.assert_stored(others, columns, n_step)
    with pytest.raises(AssertionError):
        command.assert_stored(drawn(n_step, rows[1:]), columns, n_step)


def test_every_way_to_store_stores_the_same_steps(buffer_url):
    columns, buffer = transitions(), SQLBuffer(buffer_url, 10 * EPISODE)
    steps = buffer.prepared_steps(columns)
    buffer.fill(columns, 1)
    buffer.extend(buffer.prepared(columns))
    buffer.write([steps])
    with ReplayBuffer(buffer_url) as other:
        assert len(other) == 3 * EPISODE, "a write has ended before draws find its last step"
    for store in buffer.lasting.values():
        for step in steps[:2]:
            store(step)
    buffer.close()
    with ReplayBuffer(buffer_url) as stored:
        assert len(stored) == 3 * EPISODE + 2
        found = stored.sample_arrays(2_000)
    places = {row.tobytes(): t for t, row in enumerate(columns["obs"])}
    t = np.array([places[row.tobytes()] for row in found.obs])
    np.testing.assert_array_equal(found.next_obs, columns["next_obs"][t])
    np.testing.assert_array_equal(found.reward, columns["reward"][t])
    np.testing.assert_array_equal(found.terminated, columns["done"][t])


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (9.26e-6, "9.3 µs"),
        (7.7e-5, "77 µs"),
        (2.6e-4, "0.26 ms"),
        (4e-3, "4.0 ms"),
        (0.5, "500 ms"),
    ],
)
def test_short_times_are_shown_in_microseconds(seconds, shown):
    assert shown_time(seconds) == shown
    assert shown_times([seconds]) == shown


def test_times_are_shown_with_their_quartiles():
    assert shown_times([4.0, 1.0, 2.0, 100.0, 3.0]) == "3.00 s (2.00 s to 4.00 s)"


def test_the_document_has_a_line_for_every_buffer():
    stored = json.loads(Path(command.DOCUMENT).with_suffix(".json").read_text(encoding="utf-8"))
    for section, header, n_ours, expected in (
        ("peers", command.HEADER, 2, NAMES),
        ("prioritized peers", PRIORITIES, 4, PRIORITIZED_NAMES),  # also from a mirror
    ):
        names = [line[header[0]] for line in stored[section]["tables"][0]]
        assert [name.partition(",")[0] for name in names[:n_ours]] == ["sqlbuffer"] * n_ours
        assert names[n_ours:] == expected
