"""Minari data sets, written and read by Minari itself."""

from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces

from sqlbuffer import QueryBuilder, ReplayBuffer, fields_from_env
from sqlbuffer.errors import (
    ArgumentError,
    ExportError,
    FieldError,
    FileImportError,
    InsufficientDataError,
)
from sqlbuffer.interchange import export_minari, import_minari
from tests.conftest import KINDS, MakeDatabaseUrl

NAMES = ("obs", "action", "reward", "terminated", "truncated")


class Camera(gymnasium.Env):  # type: ignore[type-arg]
    """Episodes of six steps with noise as images, in a space of two parts."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (8, 9, 3), np.uint8), "place": spaces.Discrete(7)}
    )
    action_space = spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(3)))
    t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.action_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.t += 1
        return self.observation_space.sample(), float(self.t), self.t == 6, False, {}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def recorded(url: str, env: Any, name: str = "default", n_episodes: int = 5) -> ReplayBuffer:
    buffer = ReplayBuffer(url, name, create=True, **fields_from_env(env))
    with buffer.record(env) as recording:
        recording.action_space.seed(0)
        for seed in range(n_episodes):
            recording.reset(seed=seed)
            is_over = False
            while not is_over:
                *_, terminated, truncated, _ = recording.step(recording.action_space.sample())
                is_over = terminated or truncated
    return buffer


def episodes(buffer: ReplayBuffer) -> list[dict[str, np.ndarray]]:
    """Return the arrays of each episode of a buffer, the final observation among them."""
    found = []
    for batch in buffer.loader("trajectory", 1, shuffle=False, epochs=1):
        n = int(batch.lens[0])
        padded = [name for name in batch if batch[name].shape[:1] == (1,) and name != "lens"]
        found.append(
            {
                name: batch[name][0][:n] if batch[name].shape[1:2] == (n,) else batch[name][0]
                for name in padded
            }
        )
    return found


def assert_same(one: list[dict[str, np.ndarray]], other: list[dict[str, np.ndarray]]) -> None:
    assert len(one) == len(other) > 0
    for ours, theirs in zip(one, other, strict=True):
        assert set(ours) == set(theirs)
        for name, values in ours.items():
            assert values.dtype == theirs[name].dtype
            np.testing.assert_array_equal(values, theirs[name])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_recorded_environment_survives_the_round_trip(database_url: str, env_id: str) -> None:
    buffer = recorded(database_url, gymnasium.make(env_id))
    dataset = export_minari(buffer, "test/recorded-v0", env=env_id, author="us")
    assert dataset.total_episodes == 5
    assert dataset.total_steps == len(buffer)
    loaded = minari.load_dataset("test/recorded-v0")
    assert loaded.env_spec.id == env_id
    ours = episodes(buffer)
    for mine, theirs in zip(ours, loaded.iterate_episodes(), strict=True):
        assert len(theirs.observations) == len(theirs.rewards) + 1
        np.testing.assert_array_equal(
            theirs.observations, np.concatenate([mine["obs"], mine["final_obs"][None]])
        )
        for name, values in zip(
            NAMES[1:],
            (theirs.actions, theirs.rewards, theirs.terminations, theirs.truncations),
            strict=True,
        ):
            # Batches have rewards as float32.
            np.testing.assert_array_equal(values.astype(mine[name].dtype), mine[name])
    report = import_minari("test/recorded-v0", database_url, "again")
    assert (report.n_steps, report.n_stored, report.n_duplicates) == (len(buffer), len(buffer), 0)
    with ReplayBuffer(database_url, "again") as again:
        assert_same(ours, episodes(again))
        assert {row.exp_meta.task_id for row in again} == {env_id}


@pytest.mark.parametrize("data_format", ["arrow", "parquet", "hdf5"])
def test_images_in_spaces_of_parts_are_kept_without_loss(
    sqlite_url: str, data_format: str, tmp_path: Path
) -> None:
    env = Camera()
    buffer = recorded(sqlite_url, env)
    export_minari(buffer, "camera-v0", env=env, data_format=data_format)
    dataset = minari.load_dataset("camera-v0")
    first = next(iter(dataset.iterate_episodes()))
    assert first.observations["image"].shape == (7, 8, 9, 3)
    assert first.observations["place"].shape == (7,)
    assert [part.shape for part in first.actions] == [(6, 2), (6, 3)]
    import_minari(tmp_path / "minari" / "camera-v0", sqlite_url, "again", task_id="camera")
    with ReplayBuffer(sqlite_url, "again") as again:
        assert_same(episodes(buffer), episodes(again))


def test_without_an_environment_the_spaces_are_those_of_the_buffer(database_url: str) -> None:
    buffer = recorded(database_url, Camera())
    dataset = export_minari(buffer, "camera-v0")
    assert dataset.env_spec is None
    assert dataset.observation_space == Camera.observation_space
    assert dataset.action_space == Camera.action_space
    import_minari(dataset, database_url, "again")
    with ReplayBuffer(database_url, "again") as again:
        assert_same(episodes(buffer), episodes(again))
        assert again.spaces.observation == Camera.observation_space
        assert again.spaces.action == Camera.action_space
        assert again.sample_transitions(3).next_obs["image"].shape == (3, 8, 9, 3)


def test_discrete_actions_stay_discrete(sqlite_url: str) -> None:
    buffer = recorded(sqlite_url, gymnasium.make("CartPole-v1"))
    assert export_minari(buffer, "discrete-v0").action_space == spaces.Discrete(2)


def test_without_spaces_the_fields_are_boxes(sqlite_url: str) -> None:
    env = Camera()
    declared = {**fields_from_env(env), "spaces": None}
    buffer = ReplayBuffer(sqlite_url, **declared)
    with buffer.record(env) as recording:
        recording.reset(seed=1)
        for _ in range(6):
            recording.step(recording.action_space.sample())
    dataset = export_minari(buffer, "camera-v0")
    assert dataset.observation_space["image"] == spaces.Box(0, 255, (8, 9, 3), np.uint8)
    assert set(dataset.action_space.spaces) == {"0", "1"}
    import_minari(dataset, sqlite_url, "again")
    with ReplayBuffer(sqlite_url, "again") as again:
        assert_same(episodes(buffer), episodes(again))
    # It has no spaces, and takes the steps of a data set that has some.
    other = recorded(sqlite_url, Camera(), "other")
    import_minari(export_minari(other, "other-v0", env=env), sqlite_url)
    assert len(buffer) == 36
    assert buffer.spaces is None


class Words(gymnasium.Env):  # type: ignore[type-arg]
    """Is observed as text."""

    observation_space = spaces.Dict({"note": spaces.Text(12), "n": spaces.Discrete(9)})
    action_space = spaces.Discrete(2)
    t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.t = 0
        return {"note": "begin", "n": 0}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.t += 1
        return {"note": f"step{self.t}", "n": self.t}, 1.0, self.t == 3, False, {}


def test_texts_are_kept(sqlite_url: str) -> None:
    buffer = recorded(sqlite_url, Words())
    dataset = export_minari(buffer, "words-v0", data_format="hdf5")
    assert dataset.observation_space == Words.observation_space
    notes = list(next(iter(dataset.iterate_episodes())).observations["note"])
    assert [n.decode() if isinstance(n, bytes) else n for n in notes][:2] == ["begin", "step1"]
    import_minari(dataset, sqlite_url, "again")
    with ReplayBuffer(sqlite_url, "again") as again:
        assert_same(episodes(buffer), episodes(again))


def test_sequences_and_graphs_are_refused_by_the_name_of_their_field(sqlite_url: str) -> None:
    observation = spaces.Dict({"at": spaces.Sequence(spaces.Box(0, 1, (2,)))})
    given = {"observation": observation, "action": spaces.Discrete(2)}
    fields = {"obs_at": ("float32", (-1, 2)), "action": "int64"}
    buffer = ReplayBuffer(sqlite_url, fields=fields, spaces=given)
    with pytest.raises(FieldError, match=r"'obs_at' is .*, part of a Sequence or Graph, which"):
        export_minari(buffer, "points-v0")


def test_fields_that_the_user_named_make_the_observation(sqlite_url: str) -> None:
    buffer = ReplayBuffer(
        sqlite_url,
        fields={"image": ("uint8", (4, 4)), "done": "bool", "action_x": "int64"},
        observation_fields=["image", "done"],
    )
    columns = {
        "image": np.arange(32, dtype=np.uint8).reshape(2, 4, 4),
        "done": np.array([False, True]),
        "action_x": np.array([-(2**62), 3]),
        "terminated": np.array([False, True]),
    }
    buffer.store_episode(columns, final={"image": np.zeros((4, 4), np.uint8), "done": False})
    first = next(iter(export_minari(buffer, "own-v0").iterate_episodes()))
    np.testing.assert_array_equal(first.observations["image"][:2], columns["image"])
    assert first.observations["done"].tolist() == [0, 1, 0]
    assert first.actions["x"].tolist() == [-(2**62), 3]


def test_other_fields_become_infos_and_come_back(sqlite_url: str) -> None:
    buffer = ReplayBuffer(
        sqlite_url,
        fields={
            "obs": ("float32", (2,)),
            "action": "int64",
            "logp": "float32",
            "gate": ("bool", (2,)),
        },
        observation_fields=["obs"],
    )
    columns = {
        "obs": np.ones((3, 2), np.float32), "action": [0, 1, 2], "logp": [0.5, 0.25, np.nan],
        "gate": [[True, False]] * 3,
        "truncated": [False, False, True], "reward": [0.0, 1.0, -1.0],
    }  # fmt: skip
    buffer.store_episode(columns, final={"obs": np.zeros(2, np.float32)})
    dataset = export_minari(buffer, "infos-v0")
    assert next(iter(dataset.iterate_episodes())).infos["logp"][1:3].tolist() == [0.5, 0.25]
    import_minari(dataset, sqlite_url, "again")
    with ReplayBuffer(sqlite_url, "again") as again:
        assert_same(episodes(buffer), episodes(again))
    import_minari(dataset, sqlite_url, "some", infos=["gate"])
    assert set(ReplayBuffer(sqlite_url, "some").fields) == {"obs", "action", "gate"}
    with pytest.raises(FieldError, match="has no info 'gates' of numbers of one shape; it has"):
        import_minari(dataset, sqlite_url, "none", infos=["gates"])
    plain = export_minari(buffer, "plain-v0", fields=[])
    assert not next(iter(plain.iterate_episodes())).infos


def test_episodes_that_are_evicted_in_the_meantime_are_written(sqlite_url: str) -> None:
    fields = {"obs": ("float32", (2,)), "action": "int64"}
    buffer = ReplayBuffer(sqlite_url, fields=fields, observation_fields=["obs"], max_capacity=1200)

    def store(n: int, first: int) -> None:
        for number in range(first, first + n):
            columns = {"obs": np.full((2, 2), number), "action": [number, -number]}
            columns["truncated"] = [False, True]
            buffer.store_episode(columns, final={"obs": [0, 0]})

    seen = []

    def evict(n_steps: int, seq: int, span: range) -> None:
        if not seen:
            store(600, 600)
        seen.append((n_steps, seq, span.stop))

    store(600, 0)
    dataset = export_minari(buffer, "held-v0", on_progress=evict)
    assert [int(one.actions[0]) for one in dataset.iterate_episodes()] == list(range(600))
    assert len(seen) > 1
    assert seen[-1][:2] == (1200, seen[-1][2])


def test_open_episodes_are_left_out(sqlite_url: str) -> None:
    env = gymnasium.make("CartPole-v1")
    buffer = recorded(sqlite_url, env, n_episodes=2)
    with buffer.episode("open") as episode:
        episode.append(obs=np.zeros(4, np.float32), action=0)
        buffer.flush()
        assert export_minari(buffer, "whole-v0", env=env).total_episodes == 2


def test_a_condition_chooses_episodes(sqlite_url: str) -> None:
    buffer = recorded(sqlite_url, gymnasium.make("CartPole-v1"), n_episodes=3)
    chosen = buffer.sample(1)[0].exp_meta.task_id
    condition = QueryBuilder().eq("exp_meta.task_id", chosen).build()
    assert export_minari(buffer, "some-v0", condition=condition).total_episodes == 1
    first = QueryBuilder().eq("exp_meta.step", 0).build()
    with pytest.raises(InsufficientDataError, match="no whole episode"):
        export_minari(buffer, "none-v0", condition=first)


def test_an_import_that_was_broken_off_goes_on(database_url: str) -> None:
    buffer = recorded(database_url, gymnasium.make("CartPole-v1"))
    dataset = export_minari(buffer, "recorded-v0")
    seen = []

    def stop(n_steps: int, place: int, places: range) -> None:
        seen.append(n_steps)
        assert (place, len(places)) == (n_steps, len(buffer))
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_minari(dataset, database_url, "again", on_progress=stop)
    report = import_minari(dataset, database_url, "again")
    assert report.n_stored == len(buffer) - seen[-1]
    last = import_minari(dataset, database_url, "again")
    assert (last.n_stored, last.n_duplicates) == (0, len(buffer))
    with ReplayBuffer(database_url, "again") as again:
        assert_same(episodes(buffer), episodes(again))


def test_a_data_set_is_not_overwritten_unless_asked(sqlite_url: str) -> None:
    buffer = recorded(sqlite_url, gymnasium.make("CartPole-v1"), n_episodes=2)
    export_minari(buffer, "recorded-v0")
    with pytest.raises(ExportError, match="choose another name, or overwrite"):
        export_minari(buffer, "recorded-v0")
    with buffer.record(gymnasium.make("CartPole-v1")) as recording:
        recording.reset()
        recording.step(0)
    again = export_minari(buffer, "recorded-v0", overwrite=True)
    assert (again.id, again.total_episodes) == ("recorded-v0", 3)
    assert list(minari.list_local_datasets()) == ["recorded-v0"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_export_that_is_broken_off_leaves_what_was_there(
    sqlite_url: str, overwrite: bool
) -> None:
    buffer = recorded(sqlite_url, gymnasium.make("CartPole-v1"), n_episodes=2)
    if overwrite:
        export_minari(buffer, "recorded-v0")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_minari(buffer, "recorded-v0", overwrite=overwrite, on_progress=stop)
    assert list(minari.list_local_datasets()) == (["recorded-v0"] if overwrite else [])
    if overwrite:
        assert minari.load_dataset("recorded-v0").total_episodes == 2


def test_an_environment_of_other_spaces_is_refused_before_anything_is_written(
    sqlite_url: str,
) -> None:
    buffer = recorded(sqlite_url, gymnasium.make("Pendulum-v1"), n_episodes=1)
    export_minari(buffer, "mine-v0")
    with pytest.raises(
        FieldError, match=r"'obs' is float32\(3,\), and the environment has float32"
    ):
        export_minari(buffer, "mine-v0", env="CartPole-v1", overwrite=True)
    with pytest.raises(FieldError, match="the environment 'NoSuch-v1' cannot be made"):
        export_minari(buffer, "mine-v0", env="NoSuch-v1", overwrite=True)
    assert minari.load_dataset("mine-v0").total_episodes == 1


def test_a_damaged_or_empty_data_set_is_named(sqlite_url: str, tmp_path: Path) -> None:
    buffer = recorded(sqlite_url, gymnasium.make("CartPole-v1"), n_episodes=1)
    export_minari(buffer, "recorded-v0")
    folder = tmp_path / "minari" / "recorded-v0"
    (folder / "sqlbuffer-manifest.json").unlink()  # as in a data set of another program
    metadata = folder / "data" / "metadata.json"
    whole = metadata.read_text()
    metadata.write_text(whole.replace('"total_episodes": 1', '"total_episodes": 0'))
    with pytest.raises(InsufficientDataError, match="has no episodes"):
        import_minari("recorded-v0", sqlite_url, "again")
    metadata.write_text(whole[:20])
    with pytest.raises(
        FileImportError, match=r"data cannot be read, or is damaged \(JSONDecodeError"
    ):
        import_minari("recorded-v0", sqlite_url, "again")
    assert "again" not in ReplayBuffer.list(sqlite_url)


@pytest.mark.parametrize("data_format", ["arrow", "parquet", "hdf5"])
@pytest.mark.parametrize("is_own", [True, False])
def test_a_damaged_data_set_leaves_nothing(
    make_database_url: MakeDatabaseUrl, tmp_path: Path, data_format: str, is_own: bool
) -> None:
    source = recorded(make_database_url("sqlite"), gymnasium.make("CartPole-v1"), n_episodes=3)
    export_minari(source, "whole-v0", data_format=data_format)
    folder = tmp_path / "minari" / "whole-v0"
    if not is_own:  # a data set of another program has no checksums
        (folder / "sqlbuffer-manifest.json").unlink()
    # Without a manifest the metadata of single episodes is not read.
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and (is_own or file.parent.name == "data" or file.suffix != ".json")
    )
    urls = {kind: make_database_url(kind, schema=kind == "postgresql") for kind in KINDS}
    old = ReplayBuffer(urls["postgresql"], "old", **fields_from_env(gymnasium.make("CartPole-v1")))

    def check_refused(file: Path, damaged: bytes) -> None:
        whole = file.read_bytes()
        file.write_bytes(damaged)
        for url, name in [*((url, "new") for url in urls.values()), (urls["postgresql"], "old")]:
            with pytest.raises(FileImportError, match=r"again$|again\n"):
                import_minari(folder, url, name)
        file.write_bytes(whole)

    for file in files:
        raw = file.read_bytes()
        check_refused(file, raw[: len(raw) // 2])
        if is_own:
            for place in (0, len(raw) // 3, len(raw) - 1):
                check_refused(file, raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :])
    if data_format != "hdf5":
        lost = folder / "data" / "1"
        lost.rename(tmp_path / "lost")
        with pytest.raises(FileImportError, match=r"is missing|NotFound|has 2 episodes"):
            import_minari(folder, urls["sqlite"], "new")
        (tmp_path / "lost").rename(lost)
    assert not Path(urls["sqlite"].removeprefix("sqlite:///")).exists()
    assert ReplayBuffer.list(urls["postgresql"]) == ["old"]
    assert len(old) == 0
    assert import_minari(folder, urls["postgresql"], "old").n_stored == len(source)


def test_what_a_killed_export_leaves_is_repaired_or_removed_by_the_next_one(
    sqlite_url: str, tmp_path: Path
) -> None:
    buffer, folder = recorded(sqlite_url, gymnasium.make("CartPole-v1")), tmp_path / "minari"
    export_minari(buffer, "mine-v0")
    (folder / "mine-v0").rename(folder / ".mine-v0.old-01234567")
    (folder / "mine-partial-01234567-v0").mkdir()
    (folder / ".mine-v0.partial-01234567").touch()
    with pytest.raises(ExportError, match="choose another name, or overwrite"):
        export_minari(buffer, "mine-v0")
    assert list(minari.list_local_datasets()) == ["mine-v0"]
    (folder / ".mine-v0.old-01234567").mkdir()
    export_minari(buffer, "mine-v0", overwrite=True)
    assert [path.name for path in folder.iterdir() if "mine" in path.name] == ["mine-v0"]


def test_an_empty_buffer_has_nothing_for_minari(sqlite_url: str) -> None:
    env = gymnasium.make("CartPole-v1")
    buffer = ReplayBuffer(sqlite_url, **fields_from_env(env))
    with pytest.raises(InsufficientDataError, match="no whole episode"):
        export_minari(buffer, "empty-v0", env=env)
    assert not minari.list_local_datasets()


@pytest.mark.parametrize(
    ("fields", "env", "message"),
    [
        ({"obs": "float32"}, None, "no field is an action"),
        ({"action": "float32"}, None, "no field is an observation"),
        ({"obs": "float32", "action": ("float32", (-1,))}, None, "numbers of a fixed shape"),
        ({"obs": "float32", "act": "int64"}, "CartPole-v1", "the environment has 'action', and"),
    ],
)
def test_fields_that_do_not_fit_are_named(
    sqlite_url: str, fields: dict[str, Any], env: str | None, message: str
) -> None:
    buffer = ReplayBuffer(sqlite_url, fields=fields)
    with pytest.raises(FieldError, match=message):
        export_minari(buffer, "bad-v0", env=env)


def test_infos_that_minari_cannot_hold_are_named(sqlite_url: str) -> None:
    fields = {"obs": "float32", "action": "int64", "tokens": ("int64", (-1,))}
    buffer = ReplayBuffer(sqlite_url, fields=fields, observation_fields=["obs"])
    with pytest.raises(FieldError, match=r"'tokens' is .* choose the fields of the infos"):
        export_minari(buffer, "bad-v0")
    with pytest.raises(FieldError, match="'nothing' is not one of the other fields"):
        export_minari(buffer, "bad-v0", fields=["nothing"])


def test_a_buffer_with_other_fields_is_refused(sqlite_url: str) -> None:
    dataset = export_minari(recorded(sqlite_url, gymnasium.make("CartPole-v1")), "recorded-v0")
    ReplayBuffer(sqlite_url, "other", fields={"obs": "float32"}).close()
    with pytest.raises(FieldError, match="obs"):
        import_minari(dataset, sqlite_url, "other")


def test_wrong_arguments_are_named(sqlite_url: str, tmp_path: Path) -> None:
    buffer = ReplayBuffer(sqlite_url, fields={"obs": "float32", "action": "int64"})
    exports: dict[str, list[Any]] = {
        "buffer": [None, 3],
        "dataset_id": [None, 3, "", "no version", "a\0-v0"],
        "data_format": ["zzz", 1],
        "overwrite": ["no"],
        "fields": [3, "obs"],
        "on_progress": [3],
    }
    given = {"buffer": buffer, "dataset_id": "new-v0"}
    for name, values in exports.items():
        for value in values:
            with pytest.raises(ArgumentError, match=rf"^{name} is .*, got "):
                export_minari(**{**given, name: value})
    with pytest.raises(ArgumentError, match=r"each further argument is one of .*, got 'autor'"):
        export_minari(buffer, "new-v0", autor="me")
    with pytest.raises(FieldError, match="the environment 3 cannot be made"):
        export_minari(buffer, "new-v0", env=3)
    imports: dict[str, list[Any]] = {
        "dataset": [None, 3, "", object()], "infos": [3, "logp"], "on_progress": ["print"],
    }  # fmt: skip
    for name, values in imports.items():
        for value in values:
            with pytest.raises(ArgumentError, match=rf"^{name} is .*, got "):
                import_minari(
                    **{"dataset": "new-v0", "url": sqlite_url, "name": "new", name: value}
                )
    assert not (tmp_path / "minari").exists()
    assert ReplayBuffer.list(sqlite_url) == ["default"]


def test_an_unknown_data_set_is_named(sqlite_url: str) -> None:
    with pytest.raises(FileImportError, match="nothing-v0"):
        import_minari("nothing-v0", sqlite_url)
