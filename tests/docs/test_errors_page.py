"""Every error has an entry in docs/reference/errors.md, and messages lead there."""

import ast
import copy
import inspect
import pickle
import re
import tomllib
import traceback

import numpy as np
import pytest
from typer.testing import CliRunner

from sqlbuffer import QueryBuilder, RateLimiter, ReplayBuffer, errors
from sqlbuffer.cli import app
from sqlbuffer.cli.errors import exit_code
from sqlbuffer.interchange import insert_jsonl
from tests.docs.pages import text_of
from tests.support.markdown import ROOT
from tests.support.sql import run as sql_run

PAGE = "docs/reference/errors.md"
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.SQLBufferError)
}
ENTRIES = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text_of(PAGE), re.M | re.S))


def test_each_error_has_an_entry():
    assert sorted(ENTRIES) == sorted(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_an_entry_has_causes_a_remedy_the_exit_code_and_a_message(name):
    entry = ENTRIES[name]
    code = exit_code(CLASSES[name])
    assert re.search(rf"\n- Causes: .*?\n- Remedy: .*?\n- Exit code: {code}\n", entry, re.S)
    assert len(re.findall(r"^```text\n.+\n```$", entry, re.M)) == 1


@pytest.mark.parametrize("name", CLASSES)
def test_an_entry_names_the_built_in_base_class(name):
    bases = [base for base in CLASSES[name].__bases__ if base.__module__ == "builtins"]
    wanted = [base.__name__ for base in bases if base is not Exception]
    assert [base for base in wanted if f"also a `{base}`" not in ENTRIES[name].replace(
        "also an", "also a"
    )] == []  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_the_index_of_the_page_names_each_error(name):
    start = text_of(PAGE).partition("## SQLBufferError")[0]
    assert f"(#{name.lower()})" in start


@pytest.mark.parametrize("name", CLASSES)
def test_a_traceback_names_the_command_that_explains_it_once_also_after_pickling(name):
    error = CLASSES[name]("what happened")
    note = f"See `sqlbuffer errors {name}`"
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    for each in (error, again, copy.copy(error)):
        assert each.__notes__ == [note]
        assert str(each) == "what happened"
        assert traceback.format_exception_only(each)[-1] == f"{note}\n"


def test_a_class_of_another_module_leads_to_its_public_base_class():
    class Inner(errors.StorageUnreachableError):
        pass

    assert Inner("away").__notes__ == ["See `sqlbuffer errors StorageUnreachableError`"]


def run(*words):
    return CliRunner().invoke(app, words)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CLASSES)
def test_the_command_prints_the_entry(name):
    for word in (name, name.lower(), f"sqlbuffer.errors.{name}"):
        shown = run("errors", word).stdout
        assert shown.startswith(f"{name}\n\n")
        assert "- Remedy: " in shown
        assert "](" not in shown
        assert "```" not in shown
        (message,) = re.findall(r"^```text\n(.+)\n```$", ENTRIES[name], re.M)
        assert message in shown
    listed = run("errors").stdout
    assert name in listed


def test_an_unknown_error_is_told_the_nearest_name():
    result = run("errors", "StorageBusyErr")
    assert (result.exit_code, "did you mean StorageBusyError?" in result.stderr) == (2, True)
    assert "lists all" in run("errors", "x").stderr


def test_the_page_is_part_of_the_wheel():
    project = tomllib.loads(text_of("pyproject.toml"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included[PAGE] == "sqlbuffer/errors.md"


@pytest.mark.thorough
def test_no_message_names_a_page_that_an_installed_user_does_not_have():
    found = []
    for path in (ROOT / "sqlbuffer").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
        }
        found += [
            f"{path.name}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.search(r"docs/.*\.md", node.value)
            and id(node) not in docstrings
            and path.name != "diagnosis.py"  # which finds the page
        ]
    assert found == []


def test_the_example_of_the_page_runs(read):
    read(PAGE)


def message_on_the_page(error):
    """Return the message of the entry of an error as a pattern; `...` stands for anything."""
    (shown,) = re.findall(r"^```text\n(.+)\n```$", ENTRIES[type(error).__name__], re.MULTILINE)
    return ".*".join(map(re.escape, shown.split("...")))


def lose_a_lease(buffer):
    with buffer.lease(1, timeout_s=0, lease_s=0.05), buffer.lease(1, timeout_s=10):
        pass  # the second one waits until the first has ended


def test_messages_are_those_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url, fields = "sqlite:///replay.db", {"obs": ("float32", (4,))}
    limiter = RateLimiter(samples_per_insert=1.0, min_size=10, error_buffer=10.0)
    with (
        ReplayBuffer(url, fields=fields, max_capacity=1000) as buffer,
        ReplayBuffer(url, "small", fields={"obs": ("float32", (2,))}) as small,
        ReplayBuffer("sqlite://", leases=True) as leased,
        ReplayBuffer("sqlite://", rate_limiter=limiter, wait_s=0) as paced,
        ReplayBuffer(f"{url}?mode=ro") as read_only,
    ):
        with buffer.episode(task_id="t", episode_id="e1") as episode:
            episode.append(obs=np.zeros(4))
            episode.append(obs=np.zeros(4), terminated=True)
        leased.add(state=1)
        with open("bad.jsonl", "w", encoding="utf-8") as file:
            file.write('{"task_id": "t", "reward": 1}\n{"task_id": "t", "reward": 1\n')
        sql_run("sqlite:///app.db", "CREATE TABLE episodes (x)")
        calls = [
            lambda: ReplayBuffer("mysql://host/replay"),
            lambda: ReplayBuffer(url, max_capacity=2000),
            lambda: ReplayBuffer("sqlite:///app.db", create=True),
            lambda: ReplayBuffer(url, "missing", create=False),
            lambda: buffer.size(QueryBuilder().eq("reward_tt", 1)),
            lambda: buffer.add(obs=[1, 2, 3]),
            lambda: buffer.set_model_version(3, "monday"),
            lambda: buffer.episode(task_id="t", episode_id="e1"),
            lambda: buffer.sample(64, strict=True),
            lambda: buffer.copy_to(small),
            lambda: buffer.sample("ten"),
            lambda: insert_jsonl("bad.jsonl", url, "lines"),
            lambda: paced.sample(1),
            lambda: lose_a_lease(leased),
            lambda: buffer.mirror(max_bytes=10),
            lambda: read_only.clear(),
        ]
        wrong = []
        for call in calls:
            with pytest.raises(errors.SQLBufferError) as caught:
                call()
            message = str(caught.value).replace(f"sqlite:///{tmp_path}/", "sqlite:///")
            if not re.fullmatch(message_on_the_page(caught.value), message, re.DOTALL):
                wrong.append((message, message_on_the_page(caught.value)))
    assert wrong == [], wrong
