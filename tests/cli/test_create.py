"""`info --config` prints the settings of a buffer, and `create --config` makes a buffer of them."""

import json

import pytest

from sqlbuffer import BufferConfig, RateLimiter, ReplayBuffer

CONFIG = BufferConfig.of(
    max_capacity=50,
    priorities=True,
    fields={"obs": ("float32", (3,), [0, 1, 2])},
    rate_limiter=RateLimiter(2.0),
)


@pytest.mark.thorough
def test_what_info_prints_makes_an_equal_buffer(run, buffer_url, tmp_path):
    ReplayBuffer(buffer_url, "one", config=CONFIG).close()
    printed = run("info", buffer_url, "--config", "--buffer", "one")
    assert printed.exit_code == 0
    assert BufferConfig.model_validate_json(printed.stdout) == CONFIG
    path = tmp_path / "settings.json"
    path.write_text(printed.stdout)
    made = run("create", buffer_url, "two", "--config", str(path))
    assert (made.exit_code, made.stdout) == (0, "buffer 'two' is made\n")
    made = run("create", buffer_url, "three", "--config", "-", input=printed.stdout)
    assert (made.exit_code, made.stdout) == (0, "buffer 'three' is made\n")
    for name in ("two", "three"):
        assert ReplayBuffer(buffer_url, name, create=False).config == CONFIG


def test_a_buffer_that_is_there_is_left_or_its_differences_are_listed(run, buffer_url):
    text = CONFIG.model_dump_json()
    run("create", buffer_url, "one", "--config", "-", input=text)
    again = run("create", buffer_url, "one", "--config", "-", input=text)
    assert again.exit_code == 0
    assert again.stdout == "buffer 'one' is there already, with these settings\n"
    other = CONFIG.replace({"max_capacity": 60, "alpha": 0.5}).model_dump_json()
    result = run("create", buffer_url, "one", "--config", "-", input=other)
    assert result.exit_code == 2
    assert "max_capacity: stored 50, given 60; alpha: stored 0.6, given 0.5;" in result.stderr
    assert ReplayBuffer(buffer_url, "one").config == CONFIG


def test_without_settings_a_buffer_has_the_defaults(run, tmp_path):
    assert run("create", "replay.db", "plain").exit_code == 0
    assert ReplayBuffer("sqlite:///replay.db", "plain", create=False).config == BufferConfig()
    assert json.loads(run("info", "replay.db", "--config").stdout) == (
        BufferConfig().model_dump(mode="json")
    )
    partly = run("create", "replay.db", "partly", "--config", "-", input='{"leases": {}}')
    assert partly.exit_code == 0


def test_the_url_may_come_from_the_environment(run, buffer_url, monkeypatch):
    monkeypatch.setenv("SQLBUFFER_URL", buffer_url)
    assert run("create", "one").exit_code == 0
    assert ReplayBuffer.list(buffer_url) == ["one"]


def test_a_server_without_a_schema_is_not_given_one(run, postgres_url):
    result = run("create", postgres_url, "one")
    assert result.exit_code == 4
    assert "sqlbuffer db init" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"max_capacity": 5}', "standard input: BufferConfig has no 'max_capacity'; put it into"),
        ('{"retention": {"max_capacity": 0}}', "standard input: max_capacity is an integer"),
        ("{", "standard input: BufferConfig: Invalid JSON"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(run, sqlite_url, text, message):
    result = run("create", sqlite_url, "one", "--config", "-", input=text)
    assert result.exit_code == 2
    assert message in result.stderr


def test_words_and_files_that_are_missing_are_named(run, sqlite_url):
    result = run("create", sqlite_url)
    assert result.exit_code == 2
    assert "type `sqlbuffer create URL NAME`" in result.stderr
    result = run("create", sqlite_url, "one", "--config", "none.json")
    assert result.exit_code == 2
    assert "cannot read none.json: No such file or directory; `sqlbuffer info" in result.stderr


def test_options_that_exclude_each_other_are_refused(run, filled):
    result = run("info", filled, "--config", "--json")
    assert result.exit_code == 2
    assert "leave out the other options" in result.stderr
    result = run("info", filled, "--buffer", "arrays")
    assert result.exit_code == 2
    assert "--buffer goes with --config" in result.stderr
    result = run("info", filled, "--config")
    assert result.exit_code == 2
    assert "which buffer?" in result.stderr
