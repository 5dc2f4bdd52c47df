"""`expire` sweeps buffers without writers, and `delete --older-than` deletes by age."""

import re

import pytest

from sqlbuffer import ReplayBuffer
from tests.support.passed_time import let_pass, set_clock
from tests.support.sql import run as query

HOUR = 3_600


@pytest.fixture
def aged(schema_url):
    """Return a URL: five rows of ten days ago, of two episodes, and three new ones."""
    with ReplayBuffer(schema_url, "aged", create=True) as buffer:
        for step in range(5):
            buffer.add(state=step, task_id="old", step=step, episode_id=f"e{step // 3}")
        let_pass(schema_url, 10 * 24 * HOUR)
        buffer.extend({"state": [5, 6, 7]}, task_id="new", step=[5, 6, 7])
    return schema_url


def length(url, name="aged"):
    with ReplayBuffer(url, name, create=False) as buffer:
        return len(buffer)


def test_a_dry_run_counts_and_deletes_nothing(run, aged):
    result = run("delete", aged, "--older-than", "7d", "--dry-run")
    assert result.stdout == (
        "5 of 8 rows of buffer 'aged', of 2 episodes, would be deleted; nothing was changed\n"
    )
    assert "8 of 8 rows" in run("delete", aged, "--all-rows", "--dry-run").stdout
    named = run("delete", aged, "--whole-buffer", "--buffer", "aged", "--dry-run")
    assert "would be deleted, with 8 rows; nothing was changed" in named.stdout
    assert length(aged) == 8


def test_rows_are_deleted_by_age_and_by_other_options(run, aged):
    words = ("delete", aged, "--older-than", "7d", "--eq", "step=4")
    assert run(*words, "--dry-run").stdout.startswith("1 of 8 rows")
    assert "deleted 1 rows" in run(*words, "--yes").stdout
    assert "nothing to delete" in run(*words, "--yes").stdout
    task = ("delete", aged, "--older-than", "1h", "--task", "new", "--yes")
    assert "nothing to delete" in run(*task).stdout
    result = run("delete", aged, "--older-than", "7d")
    assert result.exit_code == 2
    assert "4 of 8 rows".replace("8", "7") in result.stderr
    assert "deleted 4 rows" in run("delete", aged, "--older-than", "7d", "--yes").stdout
    assert length(aged) == 3


@pytest.mark.parametrize("age", ["0d", "seven", "-1h", ""])
def test_an_age_that_is_none_is_refused(run, aged, age):
    result = run("delete", aged, "--older-than", age, "--yes")
    assert result.exit_code == 2
    assert "older_than is a text such as '7d'" in result.stderr
    assert length(aged) == 8


def test_an_age_does_not_go_with_all_rows(run, aged):
    result = run("delete", aged, "--older-than", "7d", "--all-rows", "--yes")
    assert result.exit_code == 2
    assert "--older-than and --all-rows exclude each other" in result.stderr


def test_limits_of_age_and_size_are_set_and_expire_applies_them(run, aged):
    result = run("resize", aged, "--max-age", "7d")
    assert "5 of 8 rows leave buffer 'aged' for good" in result.stderr
    result = run("resize", aged, "--max-age", "7d", "--max-bytes", "1 GB", "--yes")
    assert result.stdout == (
        "buffer 'aged': age unlimited -> 7 d, size unlimited -> 1 GB; 5 rows left it, it holds 3\n"
    )
    assert run("expire", aged).stdout == "buffer 'aged': no rows left, it holds 3\n"
    let_pass(aged, 7 * 24 * HOUR + 10)
    with ReplayBuffer(aged, "other"):
        result = run("expire", aged)
    assert result.stdout.splitlines() == [
        "buffer 'aged': 3 too old rows left, it holds 0",
        "buffer 'other': no rows left, it holds 0",
    ]
    assert (
        "age 7 d -> unlimited"
        in run("resize", aged, "--max-age", "unlimited", "--buffer", "aged").stdout
    )
    assert run("expire", aged, "--every", "soon").exit_code == 2
    assert run("resize", aged, "--max-age", "soon", "--buffer", "aged").exit_code == 2
    assert run("resize", aged, "--buffer", "aged").exit_code == 2


def test_a_clock_that_moved_is_named_and_accepted(run, aged):
    run("resize", aged, "--max-age", "7d", "--yes")
    set_clock(aged, 365 * 24 * HOUR)
    assert "no rows left, it holds 3" in run("expire", aged).stdout
    doctor = run("doctor", aged).stdout
    assert re.search(
        r"max_age of 'aged'.*the database's clock was set by 31,5\d\d,\d\d\d s", doctor
    )
    assert "--buffer aged --accept-clock" in doctor
    assert "no rows left" in run("expire", aged, "--buffer", "aged", "--accept-clock").stdout
    assert "max_age of" not in run("doctor", aged).stdout
    query(aged, "UPDATE clock_looks SET clock_id = 'another machine'")
    set_clock(aged, 4 * 24 * HOUR)
    run("expire", aged)
    assert re.search(r"345,\d\d\d s passed by the database's clock", run("doctor", aged).stdout)
    let_pass(aged, 4 * 24 * HOUR)
    assert "3 too old rows left" in run("expire", aged, "--accept-clock").stdout
