"""`sqlbuffer copy` on a terminal, and interrupted."""

import re
import signal
import subprocess

from sqlbuffer import ReplayBuffer
from tests.cli.conftest import start
from tests.integrations.cli.terminal import run_on_terminal
from tests.support import sql
from tests.support.processes import wait_until

ROWS, FEWER_ROWS = 60_000, 8_000


def test_a_terminal_shows_a_bar_and_how_fast_it_is(schema_url, tmp_path):
    sql.fill(schema_url, ROWS).close()
    shown = run_on_terminal("copy", schema_url, str(tmp_path / "copy.db"), width=120)
    assert shown.exit_code == 0
    assert re.search(r"default ━+ +[\d,]+ steps, [\d,]+/s", shown.text)
    assert f"{ROWS:,} steps with 0 < seq <= {ROWS:,}" in shown.text.replace("\n", " ")
    with ReplayBuffer(tmp_path / "copy.db", create=False) as copied:
        assert len(copied) == ROWS


def test_exports_imports_and_inserts_show_a_bar_and_how_fast_they_are(make_database_url, tmp_path):
    url = make_database_url("sqlite", schema=True)
    sql.fill(url, FEWER_ROWS).close()
    out, lines, copy = tmp_path / "out", tmp_path / "steps.jsonl", tmp_path / "copy.db"
    for words, bar in (
        (("export", url, out), "default"),
        (("export", url, lines, "-f", "jsonl"), "default"),
        (("import", out, copy, "--buffer", "copy"), "copy"),
        (("insert", copy, lines, "--buffer", "lines"), "lines"),
    ):
        shown = run_on_terminal(*map(str, words), width=120)
        assert shown.exit_code == 0, shown.text
        assert re.search(rf"{bar} ━+ +{FEWER_ROWS:,} steps, [1-9][\d,]*/s", shown.text), words
        assert re.search(
            rf"{FEWER_ROWS:,} (of {FEWER_ROWS:,} )?steps, .*in [\d.]+ s", shown.text
        ), words


def test_a_copy_that_is_interrupted_goes_on_when_it_is_typed_again(schema_url, tmp_path):
    sql.fill(schema_url, ROWS).close()
    target = f"sqlite:///{tmp_path / 'copy.db'}"
    ReplayBuffer(target, "other").close()
    process = start("copy", schema_url, target, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    begun = "SELECT 1 FROM copies WHERE copied_seq > 0"
    wait_until(lambda: sql.run(target, begun), "a batch is copied")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    assert "buffer 'default' is copied in part; the same command continues" in stderr

    process = start("copy", schema_url, target, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    assert re.search(rf"{ROWS:,} steps with .*, [1-9][\d,]+ of them earlier", stdout)
    with ReplayBuffer(target, create=False) as copied:
        assert len(copied) == ROWS
