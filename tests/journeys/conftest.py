"""A terminal, and databases as users have them."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sqlbuffer.cli import app


@dataclass(frozen=True)
class Answer:
    """What a command in a terminal printed, and its exit code."""

    code: int
    out: str
    err: str


Terminal = Callable[[str], Answer]


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Run command lines in an empty folder, which programs and files of a test share."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SQLBUFFER_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    programs = tmp_path / "bin"
    programs.mkdir()
    command = programs / "sqlbuffer"
    command.write_text(f"#!{sys.executable}\nfrom sqlbuffer.cli import app\napp()\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    runner = CliRunner()

    def enter(line: str) -> Answer:
        words = shlex.split(line)
        if words[0] == "sqlbuffer" and not {"|", ">", "<", "&&"}.intersection(words):
            # In this process: a new one takes a second to import the package.
            result = runner.invoke(app, words[1:], prog_name="sqlbuffer")
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            return Answer(result.exit_code, result.stdout, result.stderr)
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        return Answer(done.returncode, done.stdout, done.stderr)

    return enter
