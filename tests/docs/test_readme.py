"""The examples of README.md run, in order, as a reader would type them."""

import json

from sqlbuffer import ReplayBuffer
from tests.docs.pages import SERVER_URL, SQLITE_URL, all_commands, fenced_blocks, text_of

LONGEST = 200


def test_the_examples_run(read, postgres_url):
    page = read("README.md", {SERVER_URL: postgres_url})
    assert len(page.names["batch"]) == 16
    assert [len(task) for task in page.names["tasks"]] == [25, 25]
    assert ReplayBuffer.list(postgres_url) == ["cartpole"]
    with ReplayBuffer(SQLITE_URL, name="cartpole") as episodes:
        assert {row.exp_data.reward_t for row in episodes} == {1.0}
    with ReplayBuffer(SQLITE_URL) as buffer:
        assert len(buffer) == 100
        assert buffer.max_capacity == 100_000
        assert buffer.get_by_task_id("task-3") == []
    sampled = json.loads(page.printed["sqlbuffer sample replay.db -n 3 --eq agent_id=me --json"])
    assert [row["agent_id"] for row in sampled] == ["me"] * 3
    assert "CREATE ROLE" in (page.printed["sqlbuffer db roles > roles.sql"] or _file("roles.sql"))


def _file(name):
    with open(name, encoding="utf-8") as file:
        return file.read()


def test_the_examples_use_the_server_of_the_test():
    blocks = [block.body for block in fenced_blocks("README.md") if block.language == "python"]
    assert "".join(blocks).count("postgresql://") == "".join(blocks).count(SERVER_URL) == 1


def test_the_first_commands_are_the_two_that_show_and_test_it():
    assert list(all_commands("README.md"))[:2] == ["make demo", "make test"]


def test_every_command_is_listed():
    from typer.main import get_command

    from sqlbuffer.cli import app

    listed = {line.split()[1] for line in all_commands("README.md") if line.startswith("sqlbuffer")}
    assert listed == set(get_command(app).commands)


def test_it_stays_short():
    assert len(text_of("README.md").splitlines()) <= LONGEST
