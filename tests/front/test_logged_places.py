"""The log says where a buffer is that was opened without a URL, and which name may be a typo."""

import logging
import os
import subprocess
import sys

import pytest

from sqlbuffer import ReplayBuffer

OPEN_TWICE = """
from sqlbuffer import ReplayBuffer
for name in ("default", "default", "other"):
    with ReplayBuffer(name=name) as buffer:
        buffer.add(task_id="t")
"""


def messages(caplog, level=logging.WARNING):
    return [r.getMessage() for r in caplog.records if r.name == "sqlbuffer" and r.levelno >= level]


def printed(folder, program, **variables):
    """Return what a program printed on stderr, in a folder, without settings of logging."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True,
        env=variables,
    )  # fmt: skip
    return done.stderr.splitlines()


@pytest.mark.slow
def test_without_any_url_a_first_user_reads_once_where_the_steps_are(tmp_path, monkeypatch):
    monkeypatch.delenv("SQLBUFFER_URL", raising=False)
    (line,) = printed(tmp_path, OPEN_TWICE, **os.environ)
    assert line == (
        f"no url was given, so buffer 'default' is in sqlite:///{tmp_path}/sqlbuffer.db; give one, "
        f"such as url='sqlite:///replay.db', or set SQLBUFFER_URL"
    )
    assert (tmp_path / "sqlbuffer.db").is_file()
    named = OPEN_TWICE.replace("name=name", "'replay.db', name")
    assert printed(tmp_path, named, **os.environ) == []
    in_environment = {**os.environ, "SQLBUFFER_URL": "sqlite:///here.db"}
    assert printed(tmp_path, OPEN_TWICE, **in_environment) == []


def test_a_url_of_the_environment_is_logged_for_those_who_read_all(buffer_url, monkeypatch, caplog):
    monkeypatch.setenv("SQLBUFFER_URL", buffer_url)
    with caplog.at_level(logging.INFO, "sqlbuffer"), ReplayBuffer() as buffer:
        pass
    assert messages(caplog, logging.INFO) == [
        f"buffer 'default' is in {buffer.url}, by SQLBUFFER_URL"
    ]


def test_a_name_like_another_ones_is_logged_once_with_both_and_what_to_do(schema_url, caplog):
    first, typo = "cartpole_v1", "cartpole-v1"
    ReplayBuffer(schema_url, first).close()
    assert messages(caplog) == []
    for _ in range(2):
        ReplayBuffer(schema_url, typo).close()
    (message,) = messages(caplog)
    assert message.startswith(f"buffer {typo!r} is new in ")
    assert f"next to {first!r}, which has nearly its name" in message
    assert f"open it by name={first!r} and delete" in message
    assert f"ReplayBuffer.drop(url, {typo!r})" in message
    ReplayBuffer.drop(schema_url, typo)
    ReplayBuffer(schema_url, typo).close()
    assert len(messages(caplog)) == 1
    assert ReplayBuffer.list(schema_url) == sorted([first, typo])


@pytest.mark.parametrize(
    ("name", "typo"),
    [
        ("cartpole-v1", "cartpole_v1"),
        ("cartpole_v1", "CartPole v1"),
        ("cartpole-v1", "cartpol-v1"),
        ("cartpole-v1", "catrpole-v1"),
        ("expert", "experts"),
        ("rollouts/train", "rollouts/trian"),
        ("Café", "cafe\u0301"),
        ("pendulum", "pendulum "),
    ],
)
def test_a_slip_is_noticed(name, typo, tmp_path, caplog):
    for each in (name, typo):
        ReplayBuffer(tmp_path / "replay.db", each).close()
    assert len(messages(caplog)) == 1


DIFFERENT = [
    "run-1", "run-2", "run-10", "run-1-1", "run-11", "seed0", "seed1", "cartpole", "cartpole-v0",
    "cartpole-v1", "policy_a", "policy_b", "train", "test", "demo", "memo", "left", "lift",
    "sac", "td3", "cartpole-dqn", "cartpole-ddqn", "walker2d", "walker3d", "hopper-medium",
    "hopper-medium-expert", "alice", "alicia", "ppo_2024-01-01", "ppo_2024-01-02", "eval-train",
    "experts-1", "expert-2", "agent-a", "agent-b", "強化", "学習", "e1", "e-1a", "0", "1",
]  # fmt: skip


def test_names_that_people_give_to_several_buffers_are_not(schema_url, caplog):
    for name in DIFFERENT:
        ReplayBuffer(schema_url, name).close()
    assert messages(caplog) == []
