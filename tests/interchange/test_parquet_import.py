"""`import_parquet` restores what was exported, and appends the rest."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, event

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import (
    CopyError,
    FieldError,
    FileImportError,
    SchemaMissingError,
    StorageReadOnlyError,
)
from sqlbuffer.interchange import export_parquet, import_parquet
from tests.conftest import KINDS, MakeDatabaseUrl
from tests.interchange.test_parquet_export import steps_of
from tests.support.copied_buffers import (
    FIELDS,
    columns,
    comparable,
    json_rows,
    odd_steps,
    typed_steps,
)
from tests.support.sql import run
from tests.support.views import shown

WAYS = [(here, there) for here in KINDS for there in KINDS]
# What of a label or a use is folded into the step is not in these.
# v_groups knows rollouts whose steps have left.
VIEWS = ("v_experiences", "v_tasks", "v_agents", "v_fields", "v_sessions")
Make = Callable[..., ReplayBuffer]


@pytest.fixture(params=WAYS, ids=["-".join(way) for way in WAYS])
def urls(request: pytest.FixtureRequest, make_database_url: MakeDatabaseUrl) -> tuple[str, str]:
    here, there = request.param
    return make_database_url(here, schema=True), make_database_url(there, schema=True)


def contents(folder: Path) -> tuple[Any, Any]:
    """Return the rows of the files in a form in which NaN equals NaN."""
    steps, episodes = steps_of(folder), pq.read_table(folder / "episodes.parquet")
    return repr(steps.to_pylist()), repr(episodes.to_pylist())


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("evict_by", ["row", "task", "episode"])
@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_an_export_restores_what_the_views_show(
    urls: tuple[str, str], make: Make, evict_by: str, tmp_path: Path
) -> None:
    limits = {"max_episodes": 3} if evict_by == "episode" else {}
    source = make(urls[0], "source", evict_by=evict_by, **limits)
    ReplayBuffer(urls[1], "other", fields={"x": "int8"}).store_episode({"x": [1]})
    export_parquet(source, tmp_path / "out")

    report = import_parquet(tmp_path / "out", urls[1], "copy")

    copy = ReplayBuffer(urls[1], "copy", create=False)
    assert report.is_restored
    assert report.n_stored == report.n_steps == len(copy) == len(source) > 20
    assert comparable(list(copy)) == comparable(list(source))
    here, there = shown(urls[0], "source", VIEWS), shown(urls[1], "copy", VIEWS)
    assert there == here
    quarantined = "SELECT seq, reason FROM v_quarantine WHERE buffer = :name ORDER BY seq"
    assert run(urls[1], quarantined, name="copy") == run(urls[0], quarantined, name="source") != []
    priorities = "SELECT seq, priority FROM v_priorities WHERE buffer = :name ORDER BY seq"
    assert run(urls[1], priorities, name="copy") == run(urls[0], priorities, name="source")
    assert (copy.clock, copy.session_id, copy.config) == (
        source.clock, source.session_id, source.config,
    )  # fmt: skip


def test_steps_keep_the_ids_that_the_library_made(urls: tuple[str, str], tmp_path: Path) -> None:
    source = ReplayBuffer(urls[0], fields={"x": "int64"})
    source.store_episode({"x": range(6)}, episode_id="e", task_id="t")
    source.extend({"x": range(4)}, task_id="t")
    again = [row for row in source if row.seq in (1, 3, 7)]
    seqs = QueryBuilder().in_("seq", [row.seq for row in again]).build()
    # Stored again, they have the ids of a chunk that is still there.
    assert source.delete(seqs) == 3
    assert [source.store(row).inserted for row in again if row.exp_meta.episode_id is None] == [1]
    export_parquet(source, tmp_path / "out")
    import_parquet(tmp_path / "out", urls[1], "copy")
    copy = ReplayBuffer(urls[1], "copy", create=False)
    ids = [row.id for row in source]
    assert [row.id for row in copy] == ids
    assert len(set(ids)) == 8
    for sent, buffer in ((copy, source), (source, copy)):
        assert buffer.store_batch(list(sent)).duplicates == 8
    one = QueryBuilder().eq("id", again[2].id).build()
    assert [row.seq for row in copy.get_all(one)] == [11]


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("make", [json_rows, typed_steps, odd_steps])
def test_an_export_of_what_was_restored_is_the_same(
    urls: tuple[str, str], make: Make, tmp_path: Path
) -> None:
    source = make(urls[0], "source")
    export_parquet(source, tmp_path / "one")
    import_parquet(tmp_path / "one", urls[1])
    again = ReplayBuffer(urls[1], "source", create=False)
    export_parquet(again, tmp_path / "two")
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    before = max(row.seq for row in again)
    if again.fields:
        own = {name: np.zeros(1, spec.dtype) for name, spec in again.fields.items()}
        if make is typed_steps:
            own = {name: values[:1] for name, values in columns(4, 1).items()}
        else:
            own["x"] = np.zeros((1, 2), np.float32)
        again.extend(own, task_id="after")
    else:
        again.add(task_id="after", state=1)
    assert [row.seq for row in again.get_by_task_id("after")] > [before]


@pytest.mark.each_value
@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_an_import_that_is_broken_off_goes_on_and_stores_nothing_twice(
    buffer_url: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlbuffer.interchange.parquet.exporting.GROUP_BYTES", 1)
    for most in ("MOST_ROWS", "MOST_CHUNKS"):
        monkeypatch.setattr(f"sqlbuffer.storage.copies.source.{most}", 1)
    source, reached = make(buffer_url, "source"), []
    out = tmp_path / "out"
    export_parquet(source, out)

    def interrupt(n_done: int, *_: object) -> None:
        reached.append(n_done)
        raise KeyboardInterrupt

    for n in range(1, 3):
        with pytest.raises(KeyboardInterrupt):
            import_parquet(out, buffer_url, "copy", on_progress=interrupt)
        copy = ReplayBuffer(buffer_url, "copy", create=False)
        assert len(reached) == n
        assert len(copy) == reached[-1] < len(source)
        with pytest.raises(StorageReadOnlyError, match="unfinished copy"):
            store_one(copy)
        with pytest.raises(
            CopyError, match=r"unfinished copy or import of .* again to complete it"
        ):
            export_parquet(copy, tmp_path / "part")
        with pytest.raises(CopyError, match="unfinished copy or import"):
            copy.copy_to(ReplayBuffer(buffer_url, "other", config=source.config))
        assert not (tmp_path / "part").exists()
    report = import_parquet(out, buffer_url, "copy")
    assert (report.n_stored, report.n_duplicates) == (len(source) - reached[-1], reached[-1])
    again = import_parquet(out, buffer_url, "copy")
    assert (again.n_stored, again.n_duplicates) == (0, len(source))
    assert comparable(list(copy)) == comparable(list(source))


@pytest.mark.thorough
def test_an_interrupt_inside_the_database_stays_one(sqlite_url: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = typed_steps(sqlite_url, "source")
    export_parquet(source, out)

    def interrupt(_cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE copies"):
            raise KeyboardInterrupt

    event.listen(Engine, "do_execute", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            import_parquet(out, sqlite_url, "copy")
    finally:
        event.remove(Engine, "do_execute", interrupt)
    assert import_parquet(out, sqlite_url, "copy").n_stored == len(source)


def store_one(buffer: ReplayBuffer) -> None:
    if buffer.fields:
        buffer.extend(columns(4, 1), task_id="more")
    else:
        buffer.add(task_id="more", state=1)


def test_uses_of_leased_rows_are_restored(urls: tuple[str, str], tmp_path: Path) -> None:
    source = json_rows(urls[0], "source", leases=True, max_use=3)
    with source.lease(8):
        pass
    export_parquet(source, tmp_path / "out")
    import_parquet(tmp_path / "out", urls[1], "copy")
    counts = "SELECT task_id, rows, uses FROM v_queue WHERE buffer = :name ORDER BY task_id"
    assert run(urls[1], counts, name="copy") == run(urls[0], counts, name="source") != []


@pytest.mark.thorough
def test_row_groups_end_with_chunks_so_that_an_import_restores_these(
    urls: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlbuffer.interchange.parquet.exporting.GROUP_ITEMS", 10 * 25)
    obs = np.arange(600.0, dtype=np.float32).reshape(60, 10)
    buffer = ReplayBuffer(urls[0], fields={"obs": ("float32", (10,))})
    for start in range(0, 60, 20):  # chunks of 20 steps, and row groups of 25 rows
        buffer.extend({"obs": obs[start : start + 20]}, task_id="t")
    export_parquet(buffer, tmp_path / "out")
    file = pq.ParquetFile(tmp_path / "out" / "steps-00000.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [20, 20, 20]
    assert import_parquet(tmp_path / "out", urls[1], "copy").is_restored
    with ReplayBuffer(urls[1], "copy", create=False) as copy:
        assert [row.fields["obs"].tolist() for row in copy.get_all()] == obs.tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("fields", [None, FIELDS])
def test_an_empty_buffer_is_restored_with_its_settings(
    urls: tuple[str, str], fields: Any, tmp_path: Path
) -> None:
    source = ReplayBuffer(urls[0], "source", fields=fields, max_capacity=7)
    export_parquet(source, tmp_path / "out")
    report = import_parquet(tmp_path / "out", urls[1], "copy")
    copy = ReplayBuffer(urls[1], "copy", create=False)
    assert (report.n_steps, len(copy), copy.config) == (0, 0, source.config)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_an_export_is_merged_into_a_buffer_with_steps_once(
    buffer_url: str, make: Make, tmp_path: Path
) -> None:
    source = make(buffer_url, "source", max_capacity=1_000)
    export_parquet(source, tmp_path / "out")
    target = ReplayBuffer(buffer_url, "target", config=source.config)
    if target.fields:
        target.extend(columns(5, 2), task_id="earlier")
    else:
        target.add(task_id="earlier", state=1)
    n_before = len(target)
    n_open = sum(row.exp_meta.episode_id == "open" for row in source)
    report = import_parquet(tmp_path / "out", buffer_url, "target")
    assert (report.is_restored, report.is_merged) == (False, True)
    assert (report.n_stored, report.n_open) == (len(source) - n_open, int(n_open > 0))
    import_parquet(tmp_path / "out", buffer_url, "target", include_open=True)
    assert len(target) == n_before + len(source)
    appended = {row.id: row for row in list(target)[n_before:]}
    for other in source:
        own = appended[other.id]
        assert comparable((own.id, own.exp_data, own.fields)) == comparable(
            (other.id, other.exp_data, other.fields)
        )
        assert own.exp_meta == other.exp_meta
    again = import_parquet(tmp_path / "out", buffer_url, "target")
    assert (again.n_stored, again.n_duplicates, again.n_conflicts) == (0, len(source), 0)


FACTS = (
    "SELECT episode_id, task_id, status, length, episode_return, reward, model_version "
    "FROM v_episodes WHERE buffer = '{}' AND status <> 'open' ORDER BY 1, 2"
)


@pytest.mark.thorough
def test_later_exports_of_a_buffer_add_what_has_come_since(buffer_url: str, tmp_path: Path) -> None:
    fields = {"obs": "float32"}
    episode = {"obs": [1.0, 2.0], "reward": [0.5, 1.0], "terminated": [False, True]}
    goal = ReplayBuffer(buffer_url, "goal", fields=fields, create=True)
    goal.store_episode(episode, episode_id="mine", task_id="own")
    with ReplayBuffer(buffer_url, "source", fields=fields, create=True) as source:
        source.store_episode(
            episode, episode_id="e1", task_id="t", final={"obs": 3.0}, episode_reward=7.0
        )
        open_one = source.episode("t", episode_id="e2", level=3)
        open_one.append(obs=1.0, reward=1.0)
        export_parquet(source, tmp_path / "first")
        open_one.append(obs=2.0, reward=1.0)
        open_one.end(reward=2.0, obs=9.0)
        source.store_episode(episode, episode_id="e3", task_id="t")
        export_parquet(source, tmp_path / "second")
        for folder, n_stored in (("first", 2), ("first", 0), ("second", 4), ("first", 0)):
            report = import_parquet(tmp_path / folder, buffer_url, "goal")
            assert (report.n_stored, report.is_merged) == (n_stored, True)
        of_source = run(buffer_url, FACTS.format("source"))
        assert [row for row in run(buffer_url, FACTS.format("goal")) if row[0] != "mine"] == (
            of_source
        )
        transitions = goal.sample_transitions(200)
        assert {3.0, 9.0} <= set(transitions["next_obs"].tolist())
        report = import_parquet(tmp_path / "second", buffer_url, "goal", prefix="run1/")
        assert report.n_stored == 6
        assert {row[0] for row in run(buffer_url, FACTS.format("goal"))} == {
            "mine", "e1", "e2", "e3", "run1/e1", "run1/e2", "run1/e3",
        }  # fmt: skip
    with ReplayBuffer(buffer_url, "other", fields=fields, create=True) as other:
        other.store_episode(episode, episode_id="e1", task_id="t")
        export_parquet(other, tmp_path / "other")
    with pytest.raises(CopyError, match="episode 'e1' of task 't'"):
        import_parquet(tmp_path / "other", buffer_url, "goal")
    report = import_parquet(tmp_path / "other", buffer_url, "goal", on_conflict="skip")
    assert (report.n_stored, report.n_conflicts) == (0, 2)
    small = ReplayBuffer(buffer_url, "small", fields=fields, create=True, max_capacity=3)
    small.extend({"obs": [0.0]})
    with pytest.raises(CopyError, match=r"6 steps of .* do not fit"):
        import_parquet(tmp_path / "second", buffer_url, "small")
    small.close()
    goal.close()


def foreign(path: Path, **more: Any) -> Path:
    n = 6
    table = {
        "observation": pa.array(np.arange(n * 3, dtype=np.float32).reshape(n, 3).tolist()),
        "action": pa.array(list(range(n)), pa.int32()),
        "reward": pa.array(np.arange(n) / 2),
        "terminated": pa.array([i == n - 1 for i in range(n)]),
        "task_id": pa.array([1, 1, 1, 2, 2, 2]),
        **more,
    }
    pq.write_table(pa.table(table), path)
    return path


def test_files_of_others_make_a_buffer_with_fields_of_their_columns(
    buffer_url: str, tmp_path: Path
) -> None:
    path = foreign(tmp_path / "steps.parquet", ragged=pa.array([[1], [], [2, 3], [1], [2], [3]]))
    names = {"observation": "obs", "action": "act"}
    report = import_parquet(path, buffer_url, "new", columns=names)
    buffer = ReplayBuffer(buffer_url, "new", create=False)
    assert {name: str(spec) for name, spec in buffer.fields.items()} == {
        "obs": "float64(3,)",
        "act": "int32",
        "ragged": "int64(-1,)",
    }
    rows = list(buffer)
    assert (report.n_stored, len(rows)) == (6, 6)
    assert [row.exp_data.reward_t for row in rows] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert [row.exp_meta.task_id for row in rows] == ["1", "1", "1", "2", "2", "2"]
    assert [row.fields["ragged"].tolist() for row in rows][:3] == [[1], [], [2, 3]]
    assert rows[2].fields["obs"].tolist() == [6.0, 7.0, 8.0]
    assert rows[5].exp_data.terminated
    again = import_parquet(path, buffer_url, "new", columns=names)
    assert (again.n_stored, again.n_duplicates) == (0, 6)


def test_files_of_others_go_into_fields_of_a_buffer(buffer_url: str, tmp_path: Path) -> None:
    buffer = ReplayBuffer(buffer_url, "mine", fields={"obs": ("float32", (3,)), "a": "int64"})
    path = foreign(tmp_path / "steps.parquet", note=pa.array(["x"] * 6))
    names = {"observation": "obs", "action": "a", "note": None}
    import_parquet(path, buffer_url, "mine", columns=names)
    assert [row.fields["a"].item() for row in buffer] == list(range(6))
    json_path = foreign(tmp_path / "json.parquet")
    states = {"observation": "state", "action": "actions"}
    import_parquet(json_path, buffer_url, "rows", columns=states)
    rows = list(ReplayBuffer(buffer_url, "rows", create=False))
    assert rows[1].exp_data.state == [3.0, 4.0, 5.0]


@pytest.mark.parametrize("is_typed", [True, False])
def test_appended_steps_end_episodes_without_a_writer(
    buffer_url: str, is_typed: bool, tmp_path: Path
) -> None:
    """As the page on appending files says it."""
    fields = {"x": "float64"} if is_typed else None
    buffer = ReplayBuffer(buffer_url, "mine", fields=fields, open_timeout_s=1e-3)
    step: dict[str, Any] = {"x": 0.5} if is_typed else {"state": 1}
    ended = {name: [value] * 3 for name, value in step.items()}
    buffer.store_episode(ended, episode_id="ended", task_id="t")
    buffer.episode("t", episode_id="open").append(**step)
    buffer.flush()

    def append(*episodes: str) -> None:
        n = len(episodes)
        values = {"x": [0.5] * n} if is_typed else {"state": ["1"] * n}
        keys = {"episode_id": episodes, "task_id": ["t"] * n, "terminated": [True] * n}
        pq.write_table(pa.table({**values, **keys}), tmp_path / "steps.parquet")
        import_parquet(tmp_path / "steps.parquet", buffer_url, "mine")

    append("open", "new")
    with pytest.raises(FileImportError, match=r"rows from 0 on: episode 'ended' of task 't'"):
        append("ended", "ended")
    status = "SELECT episode_id, status, length FROM v_episodes WHERE buffer = 'mine' ORDER BY 1"
    assert [tuple(row) for row in run(buffer_url, status)] == [
        ("ended", "complete", 3), ("new", "complete", 1), ("open", "abandoned", None),
    ]  # fmt: skip
    assert len(buffer) == 6


@pytest.mark.parametrize(
    ("more", "names", "message"),
    [
        ({"note": pa.array(["x"] * 6)}, {}, r"column 'note': no typed field can be made of string"),
        ({}, {"obz": "obs"}, r"columns names 'obz', which .* does not have; it has observation"),
        ({}, {"observation": "action"}, r"two columns are 'actions'"),
        ({"step": pa.array(["x"] * 6)}, {}, r"column 'step': expected step as int64, got string"),
        ({"state": pa.array(["{"] * 6)}, {}, r"column 'state', row 0: '\{' is no JSON"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    sqlite_url: str, tmp_path: Path, more: Any, names: Any, message: str
) -> None:
    path = foreign(tmp_path / "steps.parquet", **more)
    with pytest.raises(FileImportError, match=message):
        import_parquet(path, sqlite_url, "new", columns=names)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"obs": ("float32", (3,)), "act": "int32"}, "has no column 'act', a field of buffer"),
        ({"obs": ("float32", (4,))}, "field 'obs': expected"),
        ({"obs": ("int8", (3,))}, "field 'obs': "),
    ],
)
def test_fields_that_do_not_fit_are_named(
    sqlite_url: str, tmp_path: Path, fields: Any, message: str
) -> None:
    ReplayBuffer(sqlite_url, "mine", fields=fields)
    path = foreign(tmp_path / "steps.parquet")
    names = {"observation": "obs", "action": None}
    with pytest.raises((FileImportError, FieldError), match=message):
        import_parquet(path, sqlite_url, "mine", columns=names)


def has_schema(url: str) -> bool:
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return False
    try:
        ReplayBuffer.list(url)
    except SchemaMissingError:
        return False
    return True


def flip(path: Path, bit: int) -> None:
    """Change one bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    path.write_bytes(raw)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def halve(path: Path) -> None:
    """Leave half of the rows of a Parquet file, with its metadata."""
    table = pq.read_table(path)
    pq.write_table(table.slice(0, len(table) // 2), path)


def say(path: Path, **changed: Any) -> None:
    """Change what a manifest says."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


STEPS, EPISODES, MANIFEST = "steps-00000.parquet", "episodes.parquet", "sqlbuffer-manifest.json"
DAMAGES: list[tuple[str, Callable[[Path], object]]] = [
    *((name, halve) for name in (STEPS, EPISODES)),
    *((name, cut) for name in (STEPS, EPISODES, MANIFEST)),
    *((name, Path.unlink) for name in (STEPS, EPISODES, MANIFEST)),
    (MANIFEST, lambda path: say(path, steps=1)),
    (MANIFEST, lambda path: say(path, episodes=1)),
    (MANIFEST, lambda path: say(path, format=2)),
    (MANIFEST, lambda path: say(path, files=[])),
    (MANIFEST, lambda path: path.write_text("[]")),
    (EPISODES, lambda path: shutil.copy(path, path.with_name("steps-00001.parquet"))),
]


@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_an_export_that_is_not_whole_is_refused_and_leaves_nothing(
    make_database_url: MakeDatabaseUrl, make: Make, tmp_path: Path
) -> None:
    source, out = make(make_database_url("sqlite", schema=True), "source"), tmp_path / "out"
    export_parquet(source, out)
    bits = np.random.default_rng(0).integers(0, 2**40, 24).tolist()
    damages = DAMAGES + [
        ((STEPS, EPISODES, MANIFEST)[i % 3], lambda path, bit=bit: flip(path, bit))
        for i, bit in enumerate(bits)
    ]
    new = [make_database_url(kind, schema=False) for kind in KINDS]
    filled = [make_database_url(kind, schema=True) for kind in KINDS]
    for url in filled:
        ReplayBuffer(url, "empty", config=source.config)
        store_one(ReplayBuffer(url, "source", config=source.config))
    n_before = len(ReplayBuffer(filled[0], "source"))
    for i, (name, damage) in enumerate(damages):
        broken = tmp_path / f"broken-{i}"
        shutil.copytree(out, broken)
        damage(broken / name)
        for url, target in [*((url, None) for url in new), *((url, "empty") for url in filled)]:
            with pytest.raises(FileImportError, match=r"again|upgrade|alone"):
                import_parquet(broken, url, target)
        for url in filled:
            with pytest.raises(FileImportError):
                import_parquet(broken, url)
    assert not any(map(has_schema, new))
    for url in filled:
        assert sorted(ReplayBuffer.list(url)) == ["empty", "source"]
        assert len(ReplayBuffer(url, "empty")) == 0
        assert len(ReplayBuffer(url, "source")) == n_before
        assert import_parquet(out, url, "empty").is_restored


@pytest.mark.each_value
@pytest.mark.parametrize("fields", [None, {"x": "float32"}])
def test_an_export_that_is_damaged_while_it_is_read_leaves_nothing(
    buffer_url: str, fields: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlbuffer.interchange.parquet.exporting.GROUP_BYTES", 1)
    for most in ("MOST_ROWS", "MOST_CHUNKS"):
        monkeypatch.setattr(f"sqlbuffer.storage.copies.source.{most}", 2)
    source, out = ReplayBuffer(buffer_url, "source", fields=fields), tmp_path / "out"
    for task in range(6):
        source.extend({"x" if fields else "state": [0.5, task]}, task_id=str(task))
    export_parquet(source, out)
    ReplayBuffer(buffer_url, "old", config=source.config)
    file = pq.ParquetFile(out / STEPS)
    last = file.metadata.row_group(file.num_row_groups - 1).column(0)
    for name in ("old", "new"):
        n_stored: list[int] = []

        def damage(n_done: int, *_: object, n_stored: list[int] = n_stored) -> None:
            n_stored.append(n_done)
            if len(n_stored) == 1:
                flip(out / STEPS, 8 * (last.data_page_offset + last.total_compressed_size - 1))

        with pytest.raises(FileImportError, match=r"0\.parquet cannot be read, or is damaged"):
            import_parquet(out, buffer_url, name, on_progress=damage)
        assert 0 < n_stored[0] < len(source)
        flip(out / STEPS, 8 * (last.data_page_offset + last.total_compressed_size - 1))
    assert sorted(ReplayBuffer.list(buffer_url)) == ["old", "source"]
    old = ReplayBuffer(buffer_url, "old")
    assert len(old) == 0
    assert import_parquet(out, buffer_url, "old").is_restored


@pytest.mark.thorough
def test_a_single_file_of_an_export_is_appended(buffer_url: str, tmp_path: Path) -> None:
    source = typed_steps(buffer_url, "source")
    export_parquet(source, tmp_path / "out")
    report = import_parquet(tmp_path / "out" / STEPS, buffer_url, "copy")
    assert (report.is_restored, report.n_stored) == (False, len(source))
    copy = ReplayBuffer(buffer_url, "copy", create=False)
    assert copy.fields == source.fields
    assert comparable([row.fields for row in copy]) == comparable([row.fields for row in source])


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("is_typed", [True, False])
def test_a_damaged_file_of_others_is_refused_and_leaves_nothing(
    make_database_url: MakeDatabaseUrl, is_new: bool, is_typed: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The first rows are whole: nothing is stored before all were read."""
    monkeypatch.setattr("sqlbuffer.interchange.parquet.files.ROWS_AT_ONCE", 2)
    more = {} if is_typed else {"observation": pa.array(["{}"] * 6)}
    path = foreign(tmp_path / "steps.parquet", **more)
    options = {"row_group_size": 2, "write_page_checksum": True}
    pq.write_table(pq.read_table(path), path, **options)
    names = {"observation": "obs" if is_typed else "state", "action": "act" if is_typed else None}
    last = pq.read_metadata(path).row_group(2)
    columns = [last.column(i) for i in range(last.num_columns)]
    ends = [
        (own.dictionary_page_offset or own.data_page_offset) + own.total_compressed_size
        for own in columns
    ]
    whole = path.read_bytes()
    for kind in KINDS:
        url = make_database_url(kind, schema=not is_new)
        if not is_new:
            fields = {"obs": ("float32", (3,)), "act": "int32"} if is_typed else None
            ReplayBuffer(url, "mine", fields=fields)
        for end in (ends[0], ends[-1]):
            path.write_bytes(whole)
            flip(path, 8 * (end - 1))
            with pytest.raises(FileImportError, match=r"steps\.parquet cannot be read, or is"):
                import_parquet(path, url, "mine", columns=names)
        path.write_bytes(whole)
        if is_new:
            assert not has_schema(url)
            ReplayBuffer(url, "other", create=True)
        else:
            assert len(ReplayBuffer(url, "mine")) == 0
        assert import_parquet(path, url, "mine", columns=names).n_stored == 6


@pytest.mark.parametrize("is_new", [True, False])
def test_a_row_that_does_not_fit_leaves_nothing(
    make_database_url: MakeDatabaseUrl, is_new: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("sqlbuffer.interchange.parquet.files.ROWS_AT_ONCE", 2)
    names = {"observation": "obs", "action": None}
    for kind in KINDS:
        url = make_database_url(kind, schema=not is_new)
        if not is_new:
            ReplayBuffer(url, "mine", fields={"obs": ("float32", (3,))})
        for name, values in {
            "task_id": ["t"] * 5 + ["\0"],
            "state": ["{}"] * 5 + ["{"],
            "observation": [[1.0, 2.0, 3.0]] * 5 + [[1.0, 2.0]],
        }.items():
            path = foreign(tmp_path / "steps.parquet", **{name: pa.array(values)})
            with pytest.raises((FileImportError, FieldError), match=r"row|items"):
                import_parquet(path, url, "mine", columns=names)
        if is_new:
            assert not has_schema(url)
        else:
            assert len(ReplayBuffer(url, "mine")) == 0


@pytest.mark.parametrize(
    "noted", [b"{", b"[]", b"{}", b'{"format": 99}', b'{"format": 1, "is_whole": true}', b"\xff"]
)
def test_metadata_that_is_damaged_is_named(sqlite_url: str, tmp_path: Path, noted: bytes) -> None:
    path = foreign(tmp_path / "steps.parquet")
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"sqlbuffer": noted}), path)
    with pytest.raises(FileImportError, match=r"steps\.parquet|later release"):
        import_parquet(path, sqlite_url, columns={"observation": None, "action": None})


def test_missing_and_damaged_files_are_named(sqlite_url: str, tmp_path: Path) -> None:
    with pytest.raises(FileImportError, match="there is no"):
        import_parquet(tmp_path / "nothing", sqlite_url)
    with pytest.raises(FileImportError, match=r"has no files \*\.parquet"):
        import_parquet(tmp_path, sqlite_url)
    (tmp_path / "a.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(FileImportError, match=r"a\.parquet cannot be read, or is damaged"):
        import_parquet(tmp_path / "a.parquet", sqlite_url)
