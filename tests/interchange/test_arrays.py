"""Flat arrays of transitions: into whole episodes, and out again."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import (
    ArgumentError,
    ExportError,
    FieldError,
    FileImportError,
    InsufficientDataError,
)
from sqlbuffer.interchange import export_arrays, import_arrays
from tests.support.processes import wait_until
from tests.support.sql import run as run_sql

Arrays = dict[str, Any]
WAYS = ["dict", "npz", "compressed", "generator", "one by one"]
TAILS = ["cut", "open", "drop"]


def flat_arrays(seed: int = 0, n: int = 60, *, tail: int = 4) -> Arrays:
    """Return random steps; the last `tail` ones have no end, and each end has its observation."""
    rng = np.random.default_rng(seed)
    ends = rng.random(n) < 0.15
    ends[n - tail :] = False
    if tail < n:
        ends[n - tail - 1] = True
    is_terminal = rng.random(n) < 0.5
    observations = rng.standard_normal((n + 1, 3), np.float32)
    following = observations[1:].copy()
    following[ends] = rng.standard_normal((int(ends.sum()), 3), np.float32)
    return {
        "observations": observations[:-1],
        "actions": rng.integers(0, 9, (n, 2)),
        "rewards": rng.standard_normal(n).astype(np.float32),
        "terminals": (ends & is_terminal).astype(np.float32),
        "timeouts": ends & ~is_terminal,
        "next_observations": following,
        "infos/größe": rng.standard_normal((n, 2)),
        "images": rng.integers(0, 255, (n, 2, 2), np.uint8),
    }


def given(arrays: Arrays, way: str, folder: Path) -> Any:
    if way == "dict":
        return arrays
    if way in ("npz", "compressed"):
        save = np.savez if way == "npz" else np.savez_compressed
        save(folder / "data.npz", **arrays)
        return folder / "data.npz"
    return chunks(arrays, 7 if way == "generator" else 1)


def chunks(arrays: Arrays, n_rows: int) -> Iterator[Arrays]:
    for start in range(0, len(arrays["rewards"]), n_rows):
        yield {name: values[start : start + n_rows] for name, values in arrays.items()}


def expected_episodes(arrays: Arrays, tail: str) -> list[tuple[Any, ...]]:
    """Return the steps of each episode, its final observation, and whether it has ended."""
    episodes, rows = [], []
    for i in range(len(arrays["rewards"])):
        terminated, truncated = (bool(arrays[name][i]) for name in ("terminals", "timeouts"))
        rows.append([i, terminated, truncated])
        if terminated or truncated:
            episodes.append((rows, arrays["next_observations"][i].tolist(), "complete"))
            rows = []
    if rows and tail == "cut":
        rows[-1][2] = True
        episodes.append((rows, arrays["next_observations"][-1].tolist(), "complete"))
    elif rows and tail == "open":
        episodes.append((rows, None, "open"))
    return episodes


def stored_episodes(buffer: ReplayBuffer, arrays: Arrays) -> list[tuple[Any, ...]]:
    """Return the same of a buffer; its other fields are compared on the way."""
    columns = {"obs": "observations", "action": "actions", "info_größe": "infos/größe"}
    place = {row.tobytes(): i for i, row in enumerate(arrays["observations"])}
    of_id: dict[str, list[list[Any]]] = {}
    for row in buffer:
        i = place[np.asarray(row.fields["obs"]).tobytes()]
        for field, name in {**columns, "images": "images"}.items():
            stored = np.asarray(row.fields[field])
            assert stored.dtype == arrays[name].dtype
            np.testing.assert_array_equal(stored, arrays[name][i])
        assert row.exp_data.reward_t == arrays["rewards"][i]
        steps = of_id.setdefault(row.exp_meta.episode_id, [])
        steps.append([i, bool(row.exp_data.terminated), bool(row.exp_data.truncated)])
    statuses = dict(run_sql(buffer.url, "SELECT episode_id, status FROM v_episodes"))
    finals = {}
    for batch in buffer.loader("trajectory", 1, shuffle=False, epochs=1):
        first = place[batch.obs[0][0].tobytes()]
        finals[first] = batch.final_obs[0].tolist() if batch.has_final[0] else None
    return [(steps, finals.get(steps[0][0]), statuses[episode]) for episode, steps in of_id.items()]


@pytest.mark.each_value
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("way", WAYS)
def test_arrays_are_stored_as_whole_episodes_whichever_way_they_come(
    schema_url: str, tmp_path: Path, way: str, tail: str
) -> None:
    arrays = flat_arrays(seed=len(way))
    report = import_arrays(schema_url, given(arrays, way, tmp_path), tail=tail)
    assert report.n_steps == len(arrays["rewards"])
    assert report.n_stored == report.n_steps - (4 if tail == "drop" else 0)
    assert report.n_open == (tail == "drop")
    with ReplayBuffer(schema_url) as buffer:
        assert list(buffer.fields) == ["obs", "action", "info_größe", "images"]
        assert stored_episodes(buffer, arrays) == expected_episodes(arrays, tail)
    again = import_arrays(schema_url, given(arrays, way, tmp_path), tail=tail)
    assert again.n_stored == 0
    assert again.n_duplicates == report.n_stored


@pytest.mark.each_value
@pytest.mark.parametrize("seed", range(2))
def test_arrays_come_back_element_by_element(schema_url: str, tmp_path: Path, seed: int) -> None:
    arrays = flat_arrays(seed, tail=0)
    import_arrays(schema_url, arrays)
    with ReplayBuffer(schema_url) as buffer:
        export_arrays(buffer, tmp_path / "out.npz")
        export_arrays(buffer, tmp_path / "small.npz", compress=True)
        returned = export_arrays(buffer)
    for out in (returned, *(np.load(tmp_path / f"{name}.npz") for name in ("out", "small"))):
        assert set(out) == set(arrays)
        for name, values in arrays.items():
            kind = bool if name == "terminals" else values.dtype
            assert out[name].dtype == kind
            np.testing.assert_array_equal(out[name], values.astype(kind))
    again = import_arrays(schema_url, tmp_path / "out.npz")
    assert (again.n_stored, again.n_duplicates) == (0, len(arrays["rewards"]))


@pytest.mark.thorough
def test_rewards_that_float32_does_not_hold_stay_float64(sqlite_url: str) -> None:
    arrays = {**flat_arrays(tail=0), "rewards": np.full(60, 0.1)}
    import_arrays(sqlite_url, arrays)
    with ReplayBuffer(sqlite_url) as buffer:
        np.testing.assert_array_equal(export_arrays(buffer)["rewards"], arrays["rewards"])


def test_without_timeouts_an_episode_ends_where_the_next_observation_is_another(
    sqlite_url: str,
) -> None:
    # As `qlearning_dataset` of D4RL: the last step before a time limit is left out.
    arrays = flat_arrays(tail=0)
    kept = ~arrays["timeouts"].astype(bool)
    kept[-1] = True
    learning = {name: values[kept] for name, values in arrays.items() if name != "timeouts"}
    import_arrays(sqlite_url, learning)
    with ReplayBuffer(sqlite_url) as buffer:
        batch = buffer.sample_transitions(5_000)
    place = {row.tobytes(): i for i, row in enumerate(learning["observations"])}
    rows = [place[obs.tobytes()] for obs in batch.obs]
    assert len(set(rows)) == len(learning["rewards"])  # each step is a transition
    np.testing.assert_array_equal(batch.next_obs, learning["next_observations"][rows])
    np.testing.assert_array_equal(batch.terminated, learning["terminals"][rows] == 1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "make", [lambda obs: np.roll(obs, -1, 0), lambda obs: obs[[*range(1, 60), 59]]]
)
def test_observations_moved_by_a_row_say_nothing_of_the_end_of_an_episode(
    sqlite_url: str, make: Any
) -> None:
    arrays = flat_arrays(tail=4)
    arrays["next_observations"] = make(arrays["observations"])
    import_arrays(sqlite_url, arrays)
    with ReplayBuffer(sqlite_url) as buffer:
        episodes = stored_episodes(buffer, arrays)
        assert all(final is None for _, final, _ in episodes)
        assert "next_observations" not in export_arrays(buffer)


def test_next_observations_that_do_not_follow_are_stored(sqlite_url: str) -> None:
    arrays = flat_arrays()
    arrays["next_observations"] = arrays["next_observations"] + 1  # of another camera
    import_arrays(sqlite_url, arrays)
    with ReplayBuffer(sqlite_url) as buffer:
        assert "next_obs" in buffer.fields
        batch = buffer.sample_transitions(500)
        place = {row.tobytes(): i for i, row in enumerate(arrays["observations"])}
        rows = [place[obs.tobytes()] for obs in batch.obs]
        np.testing.assert_array_equal(batch.next_obs, arrays["next_observations"][rows])
        out = export_arrays(buffer)
    np.testing.assert_array_equal(out["next_observations"], arrays["next_observations"])
    with pytest.raises(FieldError, match=r"row \d+: 'next_observations' is not .* store_next=True"):
        import_arrays(sqlite_url, arrays, "new", store_next=False)
    assert ReplayBuffer.list(sqlite_url) == ["default"]


def test_an_import_that_was_broken_off_goes_on(schema_url: str) -> None:
    arrays = flat_arrays(n=200)
    seen = []

    def stop(n_stored: int, n_steps: int, steps: range) -> None:
        seen.append(n_stored)
        assert len(steps) == 200
        if len(seen) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_arrays(schema_url, arrays, on_progress=stop)
    report = import_arrays(schema_url, chunks(arrays, 11))
    assert report.n_stored == 200 - seen[-1]
    with ReplayBuffer(schema_url) as buffer:
        assert stored_episodes(buffer, arrays) == expected_episodes(arrays, "cut")


@pytest.mark.thorough
def test_an_import_that_was_killed_goes_on(schema_url: str, tmp_path: Path) -> None:
    arrays = flat_arrays(n=3_000)
    path = given(arrays, "npz", tmp_path)
    code = (
        "import sys; from sqlbuffer.interchange import import_arrays; import_arrays(*sys.argv[1:])"
    )
    process = subprocess.Popen([sys.executable, "-c", code, schema_url, str(path)])
    with process:
        try:
            wait_until(lambda: stored_steps(schema_url) > 100, "it stores steps")
        finally:
            process.kill()
    n_before = stored_steps(schema_url)
    assert n_before < 3_000
    report = import_arrays(schema_url, path)
    assert (report.n_stored, report.n_duplicates) == (3_000 - n_before, n_before)
    with ReplayBuffer(schema_url) as buffer:
        assert stored_episodes(buffer, arrays) == expected_episodes(arrays, "cut")


def stored_steps(url: str) -> int:
    """Return the number of steps in a buffer, 0 if it is missing."""
    if "default" not in ReplayBuffer.list(url):
        return 0
    with ReplayBuffer(url) as buffer:
        return len(buffer)


def test_an_open_tail_goes_on_with_a_later_file(schema_url: str) -> None:
    arrays = {**flat_arrays(n=60), "terminals": np.arange(60) == 59, "timeouts": np.zeros(60)}
    del arrays["next_observations"]
    for n in (3, 3, 50):
        report = import_arrays(schema_url, {k: v[:n] for k, v in arrays.items()}, tail="open")
    assert (report.n_stored, report.n_duplicates) == (47, 3)
    assert run_sql(schema_url, "SELECT status FROM v_episodes") == [("open",)]
    assert import_arrays(schema_url, arrays).n_stored == 10
    query = "SELECT status, length FROM v_episodes"
    assert run_sql(schema_url, query) == [("complete", 60)]
    with ReplayBuffer(schema_url) as buffer:
        assert [row.exp_data.reward_t for row in buffer] == arrays["rewards"].tolist()


@pytest.mark.parametrize("tail", ["cut", "open"])
def test_another_episode_that_begins_in_the_same_way_is_not_mixed_with_the_first(
    schema_url: str, tail: Any
) -> None:
    first = {**flat_arrays(n=20), "terminals": np.zeros(20), "timeouts": np.zeros(20)}
    del first["next_observations"]
    other = {name: values.copy() for name, values in first.items()}
    other["images"][5] += 1
    other["terminals"][-1] = 1
    import_arrays(schema_url, {name: values[:10] for name, values in first.items()}, tail=tail)
    for arrays in (other, {name: values[:15] for name, values in other.items()}):
        with pytest.raises(
            FileImportError, match=r"rows from 0 on: the buffer has other .* prefix="
        ):
            import_arrays(schema_url, arrays, tail=tail)
        report = import_arrays(schema_url, arrays, tail=tail, on_conflict="skip")
        assert report.n_stored == 0
        assert report.n_conflicts > 0
    with ReplayBuffer(schema_url) as buffer:
        assert len(buffer) == 10
    assert import_arrays(schema_url, other, prefix="other/").n_stored == 20


@pytest.mark.thorough
def test_equal_episodes_are_all_stored(sqlite_url: str) -> None:
    arrays = {
        "observations": np.zeros((12, 2)), "actions": np.zeros(12, int), "rewards": np.zeros(12),
        "terminals": np.arange(12) % 3 == 2,
    }  # fmt: skip
    assert import_arrays(sqlite_url, arrays).n_stored == 12
    assert import_arrays(sqlite_url, arrays).n_duplicates == 12
    assert run_sql(sqlite_url, "SELECT count(*), sum(length) FROM v_episodes") == [(4, 12)]
    assert import_arrays(sqlite_url, arrays, prefix="again/").n_stored == 12


@pytest.mark.thorough
def test_an_episode_that_memory_is_not_to_hold_is_stored_in_parts(schema_url: str) -> None:
    n = 150
    arrays = {
        "observations": np.zeros((n, 2**20), np.uint8), "actions": np.arange(n),
        "rewards": np.arange(n), "terminals": np.arange(n) == n - 1,
    }  # fmt: skip
    seen = []

    def stop(n_stored: int, n_steps: int, steps: range) -> None:
        seen.append(n_stored)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_arrays(schema_url, arrays, on_progress=stop)
    assert 0 < seen[0] < n
    report = import_arrays(schema_url, chunks(arrays, 13))
    assert report.n_stored + report.n_duplicates == n
    assert import_arrays(schema_url, arrays).n_duplicates == n
    assert run_sql(schema_url, "SELECT status, length FROM v_episodes") == [("complete", n)]
    with ReplayBuffer(schema_url) as buffer:
        assert [row.exp_data.reward_t for row in buffer] == list(range(n))


def test_names_of_other_libraries_and_nested_dicts_are_known(sqlite_url: str) -> None:
    n = 6
    arrays = {
        "obs": {"image": np.zeros((n, 2, 2), np.uint8), "place": np.arange(n)},
        "action": [[0.0, 1.0]] * n,
        "reward": np.ones((n, 1)),
        "terminals": np.zeros((n, 1)),
        "episode_terminals": np.array([0, 0, 1, 0, 0, 1]),  # d3rlpy 1
        "discrete_action": np.array(False),  # about the whole data set
        "metadata/algorithm": np.array("sac"),
        "infos": {"qpos": np.zeros((n, 3))},
    }
    import_arrays(sqlite_url, arrays, columns={"infos/qpos": "position"})
    with ReplayBuffer(sqlite_url) as buffer:
        assert list(buffer.fields) == ["obs_image", "obs_place", "action", "position"]
        assert buffer.observation_fields == ("obs_image", "obs_place")
        out = export_arrays(buffer)
    assert set(out) == {
        "observations/image", "observations/place", "actions", "rewards", "terminals", "timeouts",
        "position",
    }  # fmt: skip
    assert out["timeouts"].tolist() == [False, False, True] * 2
    assert not out["terminals"].any()


def test_a_buffer_that_exists_takes_arrays_that_fit(sqlite_url: str) -> None:
    fields = {"obs": ("float32", (3,)), "action": ("float32", (2,)), "x": ("int64", (), 0)}
    ReplayBuffer(sqlite_url, fields=fields, create=True).close()
    left_out = {"infos/größe": None, "images": None}
    report = import_arrays(sqlite_url, flat_arrays(), columns=left_out)
    assert report.n_stored == 60
    with pytest.raises(FieldError, match="has no field 'images' for array 'images'"):
        import_arrays(sqlite_url, flat_arrays(), columns={"infos/größe": None})
    wide = {**flat_arrays(), "observations": np.zeros((60, 4))}
    del wide["next_observations"]
    with pytest.raises(FieldError, match=r"rows of the shape \(4,\), and field 'obs'"):
        import_arrays(sqlite_url, wide, columns=left_out)
    ReplayBuffer(sqlite_url, "more", fields={**fields, "y": "int64"}).close()
    with pytest.raises(FieldError, match=r"the field 'y' \(int64\), and there is no such array"):
        import_arrays(sqlite_url, flat_arrays(), "more", columns=left_out)
    ReplayBuffer(sqlite_url, "rows").close()
    with pytest.raises(FieldError, match="'rows' stores JSON rows and has no typed fields"):
        import_arrays(sqlite_url, flat_arrays(), "rows")
    narrow = {"obs": ("int64", (3,)), "action": ("float32", (2,))}
    with pytest.raises(FieldError, match="'observations' is float32, and field 'obs'"):
        import_arrays(sqlite_url, flat_arrays(), "new", columns=left_out, fields=narrow)
    assert "new" not in ReplayBuffer.list(sqlite_url)


def test_observation_fields_of_a_buffer_may_have_other_names(sqlite_url: str) -> None:
    fields = {"camera": ("float32", (3,)), "act": ("int64", (2,)), "obs_noise": "float32"}
    settings = {"fields": fields, "observation_fields": ["camera"]}
    arrays = without("infos/größe", "images")
    arrays["obs_noise"] = np.zeros(60)
    arrays["act"] = arrays.pop("actions")
    for prefix in ("observations/", ""):
        if not prefix:
            settings = {}
            with ReplayBuffer(sqlite_url) as buffer:
                arrays = export_arrays(buffer)
        else:
            for name in ("observations", "next_observations"):
                arrays[f"{name}/camera"] = arrays.pop(name)
        report = import_arrays(sqlite_url, arrays, **settings)
        assert (report.n_stored, report.n_duplicates) == ((60, 0) if prefix else (0, 60))
    with ReplayBuffer(sqlite_url) as buffer:
        assert buffer.sample_transitions(8).next_camera.shape == (8, 3)


def without(*names: str) -> Arrays:
    return {name: values for name, values in flat_arrays().items() if name not in names}


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({**flat_arrays(), "actions": np.zeros(59)}, "'actions' has 59 rows, and 'rewards' 60"),
        (without("terminals", "timeouts"), "neither 'terminals' nor 'timeouts'"),
        (without("observations"), "has no 'observations'"),
        ({**without("rewards"), "rewrds": np.zeros(60)}, "no 'rewards' .is it 'rewrds'"),
        (
            {**flat_arrays(), "rewards": np.where(np.arange(60) == 7, np.nan, 0.0)},
            "'rewards', row 7: a reward is a finite number, got nan",
        ),
        (
            {**flat_arrays(), "terminals": np.full(60, 0.5)},
            "'terminals', row 0: expected True or False, or 1 or 0, got 0.5",
        ),
        ({**flat_arrays(), "terminals": np.zeros((60, 2))}, "a number for each row, got float64"),
        ({**flat_arrays(), "images": np.array([{}] * 60)}, "Python objects, which only pickle"),
        ({**flat_arrays(), "dones": np.zeros(60)}, "say what it is with columns="),
        ({**flat_arrays(), "obs": np.zeros(60)}, "are both 'obs'"),
        ({**flat_arrays(), "a b": np.zeros(60)}, "name its field with columns="),
        ({**flat_arrays(), "task_id": np.zeros(60)}, "the name is reserved"),
        ({**flat_arrays(), "images": [[1], [1, 2]]}, "cannot be made an array of numpy"),
        ({**flat_arrays(), 3: np.zeros(60)}, "the name of an array is text, got 3"),
        ({**flat_arrays(), "images": np.ma.masked_array(np.zeros(60))}, "would lose its mask"),
        (
            {**flat_arrays(), "next_observations": np.zeros((60, 2))},
            r"rows of the shape \(2,\), and 'observations' of \(3,\)",
        ),
    ],
)  # fmt: skip
def test_arrays_that_cannot_be_stored_are_named_and_make_nothing(
    sqlite_url: str, arrays: Arrays, message: str
) -> None:
    for source in (arrays, iter([arrays])):
        with pytest.raises(FieldError, match=message):
            import_arrays(sqlite_url, source)
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


def test_a_wrong_chunk_leaves_no_new_buffer(sqlite_url: str) -> None:
    good = flat_arrays()
    for bad, message in [
        ({**good, "rewards": np.full(60, np.inf)}, "row 60: a reward is a finite number, got inf"),
        (
            without("images"),
            "chunk 1 of the iterable of arrays has other arrays than the first one",
        ),
        (3, "chunk 1 of arrays is a dict of arrays, got 3"),
    ]:
        with pytest.raises((FieldError, ArgumentError), match=message):
            import_arrays(sqlite_url, iter([good, bad]))
    with pytest.raises(FieldError, match="row 59: 'next_observations' is not the observation"):
        import_arrays(sqlite_url, iter([good, {**good, "observations": good["observations"] + 1}]))


@pytest.mark.parametrize("arrays", [{n: v[:0] for n, v in flat_arrays().items()}, [], iter([])])
def test_no_rows_make_no_buffer(sqlite_url: str, arrays: Any) -> None:
    with pytest.raises(InsufficientDataError, match="no rows"):
        import_arrays(sqlite_url, arrays)
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


def test_files_are_never_unpickled_and_damage_is_named(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **{**flat_arrays(), "env": np.array([{}] * 60, object)})
    with pytest.raises(FieldError, match="'env' has Python objects, which only pickle reads"):
        import_arrays(sqlite_url, path)
    assert import_arrays(sqlite_url, path, columns={"env": None}).n_stored == 60
    for damaged in (path.read_bytes()[:-200], flipped(path)):
        (tmp_path / "damaged.npz").write_bytes(damaged)
        with pytest.raises(FileImportError, match=r"damaged.npz cannot be read, or is damaged"):
            import_arrays(sqlite_url, tmp_path / "damaged.npz", "new", columns={"env": None})
    (tmp_path / "data.pkl").write_bytes(b"\x80\x04")
    with pytest.raises(FileImportError, match=r"neither an \.npz nor an HDF5 file"):
        import_arrays(sqlite_url, tmp_path / "data.pkl")
    with pytest.raises(FileImportError, match="there is no file"):
        import_arrays(sqlite_url, tmp_path / "nothing.npz")
    assert ReplayBuffer.list(sqlite_url) == ["default"]


def flipped(path: Path) -> bytes:
    """Return a file with another value in its largest array."""
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("observations.npy").header_offset + 400
    raw = bytearray(path.read_bytes())
    raw[place] ^= 4
    return bytes(raw)


@pytest.mark.thorough
def test_arrays_in_the_order_of_fortran_are_read(sqlite_url: str, tmp_path: Path) -> None:
    arrays = flat_arrays()
    np.savez(tmp_path / "data.npz", **{n: np.asfortranarray(v) for n, v in arrays.items()})
    import_arrays(sqlite_url, tmp_path / "data.npz", max_capacity=1_000)
    with ReplayBuffer(sqlite_url) as buffer:
        assert buffer.config.retention.max_capacity == 1_000
        assert stored_episodes(buffer, arrays) == expected_episodes(arrays, "cut")


def test_an_export_takes_whole_episodes_that_match(sqlite_url: str, tmp_path: Path) -> None:
    buffer = ReplayBuffer(sqlite_url, fields={"obs": "float32", "action": "int64"}, create=True)
    with pytest.raises(InsufficientDataError, match="no whole episode"):
        export_arrays(buffer)
    for task in ("a", "b"):
        columns = {"obs": [0.0, 1.0], "action": [0, 1], "terminated": [False, True]}
        buffer.store_episode(columns, task_id=task, final={"obs": 2.0})
    buffer.extend({"obs": [0.0], "action": [1]}, episode_id="open")
    out = export_arrays(buffer, None, {"field": "task_id", "op": "eq", "value": "a"})
    assert {name: len(values) for name, values in out.items()} == dict.fromkeys(
        ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations"), 2
    )
    assert np.isnan(out["rewards"]).all()  # no step has one
    assert set(export_arrays(buffer, columns=["action"])) == {
        "actions", "rewards", "terminals", "timeouts"
    }  # fmt: skip
    with pytest.raises(ExportError, match="no ending that says its format"):
        export_arrays(buffer, tmp_path / "data")
    report = export_arrays(buffer, tmp_path / "data", format="npz")
    assert (report.n_steps, report.n_episodes) == (4, 2)
    with pytest.raises(ExportError, match="already; name another one, or replace it"):
        export_arrays(buffer, tmp_path / "data", format="npz")
    export_arrays(buffer, tmp_path / "data", format="npz", overwrite=True)
    assert [path.name for path in tmp_path.iterdir() if "data" in path.name] == ["data"]
    rows = ReplayBuffer(sqlite_url, "rows", create=True)
    with pytest.raises(FieldError, match="has no typed fields to make arrays of"):
        export_arrays(rows)
    ragged = ReplayBuffer(sqlite_url, "ragged", create=True, fields={"obs": ("int64", (-1,))})
    with pytest.raises(FieldError, match="flat arrays have rows of one shape"):
        export_arrays(ragged)


def test_wrong_arguments_are_named(sqlite_url: str) -> None:
    wrong = {
        "arrays": [None, 3, np.zeros(3), "", b"x"],
        "columns": [3, ["x"], {"x": 3}],
        "tail": ["end", None, 1],
        "store_next": ["no", 1],
        "task_id": ["", 3],
        "agent_id": [None, 3],
        "prefix": [3],
        "on_conflict": ["ignore"],
        "on_progress": ["print"],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ArgumentError, match=rf"^{name} is .*, got "):
                import_arrays(**{"url": sqlite_url, "arrays": flat_arrays(), name: value})
    with pytest.raises(
        FieldError, match="columns names 'x', which the dict of arrays does not have"
    ):
        import_arrays(sqlite_url, flat_arrays(), columns={"x": "obs"})
    with pytest.raises(FieldError, match="store_next=True needs next_observations"):
        import_arrays(sqlite_url, without("next_observations"), store_next=True)
    buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
    for name, value in {"path": 3, "format": "zip", "compress": 1, "overwrite": "no"}.items():
        with pytest.raises(ArgumentError, match=rf"^{name} is .*, got "):
            export_arrays(**{"buffer": buffer, "path": "data.npz", name: value})
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


def test_longer_arrays_after_a_cut_are_told_to_keep_the_tail_open(schema_url: str) -> None:
    arrays = {
        "observations": np.arange(9.0), "actions": np.arange(9), "rewards": np.ones(9),
        "terminals": np.zeros(9),
    }  # fmt: skip
    first = {name: values[:5] for name, values in arrays.items()}
    import_arrays(schema_url, first)
    ended = {**arrays, "terminals": np.arange(9) == 8}
    for longer, tail in ((arrays, "cut"), (arrays, "open"), (ended, "drop"), (ended, "open")):
        with pytest.raises(
            FileImportError, match=r"first 5 steps of this .*tail='cut' .*arrays that grow need"
        ):
            import_arrays(schema_url, longer, tail=tail)  # type: ignore[arg-type]
        report = import_arrays(schema_url, longer, tail=tail, on_conflict="skip")  # type: ignore[arg-type]
        assert (report.n_stored, report.n_duplicates + report.n_conflicts) == (0, 9)
        assert report.n_conflicts > 3
    assert import_arrays(schema_url, first, tail="open").n_duplicates == 5
    other = {**arrays, "actions": np.array([0, 1, 7, 3, 4, 5, 6, 7, 8])}
    with pytest.raises(FileImportError, match=r"with 2 ids of these: '\w+/2', '\w+/4'; give pref"):
        import_arrays(schema_url, other)


def test_fields_that_are_named_like_next_observations_are_exported(
    sqlite_url: str, tmp_path: Path
) -> None:
    fields = {"obs": "float32", "action": "int64", "next_observations_x": "int64"}
    with ReplayBuffer(sqlite_url, fields=fields) as buffer:
        columns = {"obs": [0, 1], "action": [0, 1], "next_observations_x": [3, 4]}
        columns |= {"reward": [0.5, 1e-9], "truncated": [False, True]}
        buffer.store_episode(columns, final={"obs": 2})
        buffer.store_episode(columns)  # without the observation after its last step
        arrays = export_arrays(buffer)
        export_arrays(buffer, tmp_path / "out.npz")
    assert arrays["next_observations_x"].tolist() == [3, 4, 3, 4]
    assert arrays["rewards"].dtype == np.float64
    assert "next_observations" not in arrays
    with np.load(tmp_path / "out.npz") as file:
        assert list(file) == list(arrays)
        for name, values in arrays.items():
            assert file[name].dtype == values.dtype
            np.testing.assert_array_equal(file[name], values)


@pytest.mark.parametrize("name", ["rewards", "timeouts", "next_observations"])
def test_a_field_with_the_name_of_another_array_is_named(sqlite_url: str, name: str) -> None:
    fields = {"obs": "float32", "action": "int64", name: "int64"}
    with (
        ReplayBuffer(sqlite_url, fields=fields) as buffer,
        pytest.raises(FieldError, match=f"field '{name}' would be the array '{name}', which is"),
    ):
        export_arrays(buffer)


def test_keys_become_fields_as_those_of_spaces_do(sqlite_url: str) -> None:
    arrays = {**flat_arrays(), "observations/front camera": np.zeros(60), "infos/a.b": np.ones(60)}
    del arrays["next_observations"]
    import_arrays(sqlite_url, arrays)
    fields = list(ReplayBuffer(sqlite_url).fields)
    assert {"obs_front_camera", "info_a_b"} < set(fields)
