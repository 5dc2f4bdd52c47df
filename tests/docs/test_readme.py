"""The examples of README.md run, in order, as a reader would type them."""

import re

import pytest
from typer.main import get_command

from sqlbuffer import ReplayBuffer
from sqlbuffer.cli import app
from sqlbuffer.storage import readonly
from tests.conftest import close_pool
from tests.support.markdown import ROOT, blocks

SERVER_URL = "postgresql://me@db.internal/replay"


def test_the_examples_run(tmp_path, monkeypatch, postgres_url, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("README.md", "python"):
        exec(block.replace(SERVER_URL, postgres_url), names)
    printed = capsys.readouterr().out
    assert "StoreResult(inserted=25, duplicates=0" in printed
    assert "StoreResult(inserted=0, duplicates=25" in printed
    assert len(names["batch"]) == 16
    assert [len(task) for task in names["tasks"]] == [25, 25]
    assert ReplayBuffer.list(postgres_url) == ["cartpole"]
    for statement in blocks("README.md", "sql"):
        assert len(readonly.query("sqlite:///replay.db", statement).rows) == 5
    close_pool("sqlite:///replay.db")


def test_the_examples_use_the_server_of_the_test():
    text = "".join(blocks("README.md", "python"))
    assert text.count("postgresql://") == text.count(SERVER_URL) == 1


@pytest.mark.parametrize(
    "line", re.findall(r"^\$ sqlbuffer (.*)$", (ROOT / "README.md").read_text(), re.M)
)
def test_the_commands_exist(line):
    command = get_command(app)
    for word in line.split():
        if not hasattr(command, "commands"):
            break
        assert word in command.commands
        command = command.commands[word]


def test_make_knows_the_commands():
    targets = re.findall(r"^\$ make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets == ["demo", "test"]
    assert all(f"\n{target}:" in makefile for target in targets)
