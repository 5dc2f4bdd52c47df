"""An analyst asks what others have recorded: by SQL, with pandas, and on the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer, orm
from sqlbuffer.errors import StorageReadOnlyError
from tests.journeys.conftest import Terminal

EPISODES, STEPS = 20, 10


def record(url: str) -> None:
    """What the robots' team does: the arm gets warm, and later models earn more."""
    fields = {
        "camera": ("uint8", (8, 8)),
        "joints": ("float32", (3,)),
        "action": "int64",
        "temperature": {"dtype": "float32", "column": True},
    }
    with ReplayBuffer(
        url,
        "robot",
        create=True,
        fields=fields,
        observation_fields=["camera", "joints"],
        meta_fields={"arm": "U8"},
    ) as buffer:
        for number in range(EPISODES):
            with buffer.episode(
                f"pick-{number}", model_version=number // 10, arm=("left", "right")[number % 2]
            ) as episode:
                for t in range(STEPS):
                    episode.append(
                        camera=np.full((8, 8), t, np.uint8),
                        joints=[0.1 * t, 0.5, number],
                        action=t % 4,
                        temperature=20.0 + number + t / 10,
                        reward=1.0 + number // 10 + 0.5 * (number % 2),
                        terminated=t == STEPS - 1,
                    )


@pytest.mark.thorough
@pytest.mark.slow
def test_finds_the_answers(terminal: Terminal, database_url: str) -> None:
    url = database_url
    record(url)

    # What is there?
    (overview,) = json.loads(terminal(f"sqlbuffer ls {url} --json").out)
    assert (overview["buffer"], overview["rows"]) == ("robot", EPISODES * STEPS)
    said = terminal(f"sqlbuffer sql {url} 'SELECT field, dtype, shape FROM v_fields' --csv").out
    assert 'camera,uint8,"[8,8]"' in said.splitlines()

    # By SQL: which arm earns more? What was said of an episode is in `meta`.
    engine = orm.engine(url)
    episodes = pd.read_sql("SELECT meta, episode_return FROM v_episodes", engine)
    episodes["arm"] = [as_json(meta)["arm"] for meta in episodes["meta"]]
    returns = episodes.groupby("arm")["episode_return"].mean()
    assert returns.to_dict() == {"left": 15.0, "right": 20.0}

    # Fields that conditions can use are in `fields`, for SQL too.
    steps = pd.read_sql("SELECT task_id, step, reward, fields FROM v_experiences", engine)
    engine.dispose()
    steps["temperature"] = [as_json(fields)["temperature"] for fields in steps["fields"]]
    warm = steps[steps["temperature"] > 35]
    assert set(warm["task_id"]) == {f"pick-{number}" for number in range(15, EPISODES)}

    # In Python, the arrays as well.
    condition = QueryBuilder().gt("temperature", 35).build()
    with ReplayBuffer(url, "robot", create=False) as buffer:
        assert buffer.size(condition) == len(warm)
        table = buffer.sample_arrays(500, condition=condition).to_pandas()
        row = next(buffer.get_all(condition))
    assert table["camera"].iloc[0].shape == (8, 8)
    assert (table["temperature"] > 35).all()
    assert np.stack(list(table["joints"])).shape == (500, 3)
    assert row.fields["joints"].tolist() == pytest.approx([0.1, 0.5, 15])
    assert row.exp_data.reward_t == 2.5

    # A spreadsheet for a colleague, arrays as JSON.
    assert terminal(f"sqlbuffer sample {url} -n 50 --seed 1 --csv > sample.csv").code == 0
    sample = pd.read_csv("sample.csv")
    assert len(sample) == 50
    joints = np.array(list(map(json.loads, sample["joints"])))
    assert joints[:, 2].tolist() == [int(task.removeprefix("pick-")) for task in sample["task_id"]]
    cameras = np.array(list(map(json.loads, sample["camera"])))
    assert (cameras == sample["step"].to_numpy()[:, None, None]).all()
    task = terminal(f"sqlbuffer show {url} pick-7 --csv").out.splitlines()
    assert len(task) == 1 + STEPS
    assert task[0].endswith("camera,joints,action,temperature")

    # What does not work says what does.
    wrong = terminal(f"sqlbuffer sql {url} 'SELECT temperature FROM v_experiences'")
    assert wrong.code == 1
    assert "in its column `fields`, and v_fields lists all" in wrong.err
    wrong = terminal(f"sqlbuffer sql {url} 'SELECT * FROM experience_view'")
    assert wrong.code == 1
    assert "did you mean experiences?" in wrong.err
    wrong = terminal(f"sqlbuffer sql {url} 'DELETE FROM v_experiences'")
    assert wrong.code == 1
    assert "`sqlbuffer sql` only reads" in wrong.err


def test_a_file_that_is_only_read_stays_as_it_is(terminal: Terminal, sqlite_url: str) -> None:
    record(sqlite_url)
    path = sqlite_url.removeprefix("sqlite:///")
    before = Path(path).read_bytes()
    with ReplayBuffer(f"{sqlite_url}?mode=ro", "robot") as buffer:
        assert len(buffer.sample(5)) == 5
        with pytest.raises(StorageReadOnlyError, match="to write, open it without mode=ro"):
            buffer.delete(QueryBuilder().eq("task_id", "pick-1"))
    assert terminal(f"sqlbuffer delete {sqlite_url}?mode=ro --task pick-1 --yes").code != 0
    assert Path(path).read_bytes() == before


def as_json(value: str | dict[str, Any]) -> dict[str, Any]:
    """SQLite has JSON as text; drivers of PostgreSQL parse it."""
    return json.loads(value) if isinstance(value, str) else value
