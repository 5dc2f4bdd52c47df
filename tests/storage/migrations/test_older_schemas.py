"""The command line on a schema of an earlier release."""

import pytest

from sqlbuffer.storage.migrations import migrate


@pytest.mark.parametrize("command", [("db", "check"), ("db", "init"), ("info",)])
def test_an_older_schema_asks_for_an_upgrade(run, schema_url, command, monkeypatch):
    monkeypatch.setattr(migrate, "REVISIONS", ("0001", "0002"))
    monkeypatch.setattr(migrate, "HEAD", "0002")
    result = run(*command, schema_url)
    assert result.exit_code == 4
    assert "sqlbuffer db upgrade" in result.stderr
    assert run("db", "current", schema_url).output == "0001 (head is 0002)\n"


def test_upgrade_brings_an_older_schema_to_head(run, schema_url, monkeypatch):
    done = []
    monkeypatch.setattr(migrate, "REVISIONS", ("0001", "0002"))
    monkeypatch.setattr(migrate, "HEAD", "0002")
    monkeypatch.setattr(migrate, "_run_alembic", lambda *arguments: done.append(arguments[1:]))
    assert run("db", "upgrade", schema_url).exit_code == 0
    assert done == [("upgrade", "head")]
