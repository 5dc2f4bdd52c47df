"""The programs of `docs/examples/` run, and do what they say."""

import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from importlib.util import find_spec

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from tests.support.markdown import ROOT
from tests.support.processes import wait_until
from tests.support.sql import run, scalar

EXAMPLES = ROOT / "docs" / "examples"


def command(name, *arguments):
    return [sys.executable, str(EXAMPLES / name), *arguments]


@contextmanager
def started(folder, *words):
    """Yield a running program, and how to read what it has printed; it is killed in the end."""
    log = folder / "printed"
    with log.open("w") as out:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process, log.read_text
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def is_running(process):
    """Tell whether the program or a process that it started is."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_example_is_run_here():
    tested = {
        "agent_rollouts.py",
        "ddp_returns.py",  # in tests/integrations/test_torchrun.py
        "dqn.py",
        "dqn_actors.py",
        "grpo_groups.py",
        "iql_cartpole.py",
        "online_rollouts.py",
        "ppo.py",
        "ray_cartpole.py",  # in tests/peers
        "sac.py",
        "sb3_collectors.py",  # in tests/peers
    }
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


def test_rollouts_are_read_back_by_group(schema_url, tmp_path):
    words = command("agent_rollouts.py", "--url", schema_url, "--prompts", "3", "--processes", "3")
    with started(tmp_path, *words) as (process, read):
        process.wait(60)
        printed = read()
    assert process.returncode == 0, printed
    assert "24 rollouts of 72 steps, written by 3 processes" in printed
    assert "24 rollouts read back in groups of 8" in printed
    shown = re.findall(r"^  agent-\d  ([\d.]+)  ([+-][\d.]+)  The sum is", printed, re.MULTILINE)
    for group in np.array(shown, float).reshape(3, 8, 2):
        returns, advantages = group.T
        expected = (returns - returns.mean()) / (returns.std() + 1e-6)
        np.testing.assert_allclose(advantages, expected, atol=0.03)  # of rounded returns
    with ReplayBuffer(schema_url, name="rollouts") as buffer:
        rows = list(buffer)
    assert Counter(row.exp_meta.task_id for row in rows) == {f"prompt-{n}": 24 for n in range(3)}
    messages = [message for row in rows for message in row.exp_data.messages]
    assert {message["role"] for message in messages} == {"user", "assistant", "tool"}
    statuses = "SELECT status, count(*) FROM v_episodes GROUP BY status"
    assert run(schema_url, statuses) == [("complete", 24)]


def test_each_rollout_trains_the_model_once_though_a_player_and_a_trainer_are_killed(
    schema_url, tmp_path
):
    if find_spec("torch") is None:
        pytest.skip("allowed: no torch for this Python")
    words = command("grpo_groups.py", "--url", schema_url, "--groups", "6")
    with started(tmp_path, *words) as (process, read):
        process.wait(120)
        printed = read()
    assert process.returncode == 0, printed
    assert "player-0 is killed in group-" in printed
    assert re.search(r"^trainer-0 goes on from step-1, \d+ turns are free again$", printed, re.M)
    steps = re.findall(r"^step (\d): 16 rollouts, mean reward 0", printed, re.MULTILINE)
    assert steps == ["1", "2", "2", "3"]
    assert "48 of 48 rollouts, 1 time each" in printed
    episodes = "SELECT status, count(*) FROM v_episodes GROUP BY status ORDER BY 1"
    assert run(schema_url, episodes) == [("aborted", 1), ("complete", 48)]
    attempts = "SELECT status, attempt, count(*) FROM v_work GROUP BY 1, 2 ORDER BY 2"
    assert run(schema_url, attempts) == [("done", 1, 47), ("done", 2, 1)]


# Every run prints the same.
ONLINE_RUN = """\
run-1: trained on 6 times 8 fragments, killed while both ranks read
run-1: trained on 6 times 8 fragments, killed while both ranks read
run-2: trained on 6 times 8 fragments, done
18 fetches of fragments of 5 workers
136 fragments read by 2 ranks
kept: every trainer was killed as planned or has ended
kept: whole chunks of consecutive fragments of one worker
kept: no chunk in more than 2 fetches or twice in one
kept: nothing stale and nothing of another session
kept: one id for each fragment and one fragment for each id
kept: every rank has the same list
kept: every prepared fragment can be read, and is as it was stored
kept: the buffer keeps the newest when there are too many
"""


def test_the_rules_hold_in_an_online_run_whose_trainer_is_killed(sqlite_url, tmp_path):
    words = command("online_rollouts.py", "--url", sqlite_url)
    with started(tmp_path, *words) as (process, read):
        process.wait(60)
        printed = read()
    assert process.returncode == 0, printed
    assert printed == ONLINE_RUN


@pytest.mark.slow
def test_iql_learns_offline_from_a_policy_that_is_mostly_random(sqlite_url, tmp_path):
    if find_spec("torch") is None:
        pytest.skip("allowed: no torch for this Python")
    assert len((EXAMPLES / "iql_cartpole.py").read_text(encoding="utf-8").splitlines()) <= 120
    words = command("iql_cartpole.py", "--url", sqlite_url, "--quick")
    with started(tmp_path, *words) as (process, read):
        process.wait(120)
        printed = read()
    assert process.returncode == 0, printed
    assert "10,000 of 10,000 steps" in printed
    before, after = map(int, re.findall(r"mean return: scripted (\d+), IQL (\d+)", printed)[0])
    assert before < 80
    assert after > 2 * before
    with started(tmp_path, *words, "--epochs", "1") as (process, read):
        process.wait(120)
        assert "10,000 were there already" in read()


@pytest.mark.slow
def test_a_learner_that_was_killed_goes_on_from_what_is_stored(sqlite_url, tmp_path):
    if find_spec("torch") is None:
        pytest.skip("allowed: no torch for this Python")
    words = command("dqn_actors.py", "--url", sqlite_url, "--quick", "--actors", "2")
    with started(tmp_path, *words) as (process, read):
        wait_until(lambda: process.poll() is not None or updates_in(read()), "it learns")
        assert process.poll() is None, read()
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not is_running(process), "its actors notice that it is gone")
        before, updates = n_complete(sqlite_url), updates_in(read())
    with started(tmp_path, *words) as (process, read):
        process.wait(120)
        printed = read()
    assert process.returncode == 0, printed
    stored, steps, made = map(int, re.findall(r"\d+", printed.splitlines()[0]))
    assert stored == before
    assert steps >= stored
    assert made >= updates
    assert "NOT SOLVED, as expected of a quick run" in printed
    assert n_complete(sqlite_url) >= before + 40
    assert updates_in(printed) > made


def updates_in(printed):
    """Return how many updates the newest line tells of."""
    return max(map(int, re.findall(r"(\d+) updates \(", printed)), default=0)


def n_complete(url):
    return scalar(url, "SELECT count(*) FROM v_episodes WHERE status = 'complete'")


@pytest.mark.slow
def test_a_learner_draws_from_a_mirror_next_to_four_actors(make_database_url, tmp_path):
    if find_spec("torch") is None:
        pytest.skip("allowed: no torch for this Python")
    url = make_database_url("postgresql", schema=True)
    words = command("dqn_actors.py", "--url", url, "--quick", "--actors", "4")
    with started(tmp_path, *words) as (process, read):
        process.wait(120)
        printed = read()
    assert process.returncode == 0, printed
    assert "NOT SOLVED, as" in printed
    assert scalar(url, "SELECT count(DISTINCT agent_id) FROM v_experiences") == 4


# The least mean return that a program in one file learns; a random policy has 22, 22 and -1200.
LEARNED = {"dqn.py": 80, "ppo.py": 80, "sac.py": -500}
DATABASES = {"dqn.py": "sqlite", "ppo.py": "postgresql", "sac.py": "sqlite"}
# Those that take half a minute run for less; tests/nightly waits until they have learned.
SHORTER = {"ppo.py": ["--iterations", "6"], "sac.py": ["--total-timesteps", "1200"]}
ADVANTAGES = "SELECT count(*) FROM v_experiences WHERE advantage IS NOT NULL"


@pytest.mark.parametrize("program", LEARNED)
def test_a_program_in_one_file_is_short(program):
    assert len((EXAMPLES / program).read_text("utf-8").splitlines()) <= 120


@pytest.mark.slow
def test_a_program_in_one_file_learns(make_database_url, tmp_path):
    check_that_it_learns("dqn.py", make_database_url, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("program", SHORTER)
def test_a_program_in_one_file_runs(program, make_database_url, tmp_path):
    url, printed = run_in_one_file(program, make_database_url, tmp_path, *SHORTER[program])
    n_episodes, mean = re.search(r"(\d+) episodes, mean .*: (-?[\d.]+)$", printed).groups()
    assert n_complete(url) >= int(n_episodes) > 0
    assert math.isfinite(float(mean))
    if program == "ppo.py":
        assert scalar(url, ADVANTAGES) == 6 * 8 * 128


def check_that_it_learns(program, make_database_url, folder):
    """Run a program, and see that its policy is better than a random one."""
    url, printed = run_in_one_file(program, make_database_url, folder)
    n_episodes, mean = re.search(r"(\d+) episodes, mean .*: (-?[\d.]+)$", printed).groups()
    assert float(mean) >= LEARNED[program], printed
    assert n_complete(url) >= int(n_episodes)
    if program == "ppo.py":
        assert scalar(url, ADVANTAGES) == 30 * 8 * 128


def run_in_one_file(program, make_database_url, folder, *words):
    """Return the database that a program has filled, and what it has printed."""
    if find_spec("torch") is None:
        pytest.skip("allowed: no torch for this Python")
    url = make_database_url(DATABASES[program])
    with started(folder, *command(program, "--url", url, *words)) as (process, read):
        process.wait(900)
        printed = read()
    assert process.returncode == 0, printed
    return url, printed
