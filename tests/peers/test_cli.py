"""`sqlbuffer export` and `sqlbuffer import` with formats of other libraries."""

from pathlib import Path
from typing import Any

import gymnasium
import minari
import pytest
from datasets import load_dataset

from sqlbuffer import ReplayBuffer
from tests.cli.conftest import run
from tests.peers.rollouts import store_rollouts
from tests.peers.test_minari import assert_same, episodes, recorded

__all__ = ["run"]
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_minari_goes_out_and_in(run: Any, database_url: str, tmp_path: Path) -> None:
    buffer = recorded(database_url, gymnasium.make("CartPole-v1"))
    own = ["cartpole/mine-v0", "--format", "minari", "--env", "CartPole-v1"]
    result = run("export", database_url, *own)
    assert result.exit_code == 0, result.stderr
    assert f"'cartpole/mine-v0': 5 episodes, {len(buffer)} steps" in result.stdout
    assert minari.load_dataset("cartpole/mine-v0").total_steps == len(buffer)
    again = run("export", database_url, *own)
    assert again.exit_code == 1
    assert "there is a Minari data set 'cartpole/mine-v0'; choose another name" in again.stderr
    assert run("export", database_url, *own, "--overwrite").exit_code == 0

    named = run("import", "cartpole/mine-v0", "named.db", "--format", "minari")
    assert named.exit_code == 0, named.stderr
    assert f"{len(buffer)} of {len(buffer)} steps" in named.stdout
    path = str(tmp_path / "minari" / "cartpole" / "mine-v0")
    assert run("import", path, "found.db", "--buffer", "offline").exit_code == 0
    for url, name in (("named.db", "default"), ("found.db", "offline")):
        with ReplayBuffer(url, name) as imported:
            assert_same(episodes(buffer), episodes(imported))
    missing = run("import", "nothing-v0", "named.db", "--format", "minari")
    assert missing.exit_code == 2  # as for a file that is not there
    assert "nothing-v0" in missing.stderr


def test_rollouts_become_a_folder_for_load_dataset(
    run: Any, database_url: str, tmp_path: Path
) -> None:
    store_rollouts(database_url).close()
    result = run(
        "export", database_url, "pairs", "-b", "rollouts", "-f", "hf", "--rows", "preference"
    )
    assert result.exit_code == 0, result.stderr
    assert "exported to pairs: 4 rows of preference, from 24 steps" in result.stdout
    pairs = load_dataset("pairs", split="train", cache_dir=str(tmp_path / "cache"))
    assert pairs[0]["chosen"][-1]["content"] == "It is 2."


def test_steps_become_a_folder_for_load_dataset(run: Any, sqlite_url: str, tmp_path: Path) -> None:
    store_rollouts(sqlite_url).close()
    result = run("export", sqlite_url, "steps", "--buffer", "rollouts", "--format", "hf")
    assert result.exit_code == 0, result.stderr
    steps = load_dataset("steps", split="train", cache_dir=str(tmp_path / "cache"))
    assert len(steps) == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-f", "csv"], "there is no format 'csv'; choose from parquet, jsonl, hf, minari"),
        (["-f", "hf", "--rows", "dpo"], "there are no rows 'dpo'; choose from steps, conv"),
        (["--rows", "messages"], "--rows is for --format hf, and this is parquet"),
        (["--env", "CartPole-v1"], "--env is for --format minari, and this is parquet"),
        (["-f", "hf", "--rows", "messages", "--columns", "seq"], "a rollout has no 'seq'"),
    ],
)
def test_options_that_do_not_fit_are_named(
    run: Any, sqlite_url: str, options: list[str], message: str
) -> None:
    store_rollouts(sqlite_url).close()
    result = run("export", sqlite_url, "out", "--buffer", "rollouts", *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_step_without_messages_is_named_and_nothing_is_written(
    run: Any, sqlite_url: str, tmp_path: Path
) -> None:
    with ReplayBuffer(sqlite_url) as buffer:
        buffer.add(task_id="odd", messages=[{"content": "?"}], terminated=True)
    result = run("export", sqlite_url, "out", "--format", "hf", "--rows", "messages")
    assert result.exit_code == 2
    assert "task 'odd', episode None: a message is a dict with a 'role'" in result.stderr
    assert not (tmp_path / "out").exists()
