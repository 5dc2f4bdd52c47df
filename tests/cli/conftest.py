from pathlib import Path

import pytest
from typer.testing import CliRunner

from sqlbuffer.cli import app


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SQLBUFFER_URL", raising=False)
    runner = CliRunner()

    def invoke(*arguments: str):
        result = runner.invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke
