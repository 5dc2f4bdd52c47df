"""Pages that use the programs of PostgreSQL and SQLite, or draw very often."""

import re
import shutil
import subprocess
import uuid

import numpy as np
import psycopg
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from tests.cli.conftest import execute, existing_logins, logged_in
from tests.conftest import close_pool
from tests.docs.pages import SERVER_URL, SQLITE_URL, all_commands, pages
from tests.support.array_rows import make_array_row
from tests.support.markdown import ROOT
from tests.support.sql import scalar
from tests.support.typed_buffer import both_layouts

ADMIN_URL = "postgresql://postgres@db.internal/replay"
RESTORED_URL = "postgresql://me@db.internal/restored"


@pytest.fixture
def rollouts(postgres_server, postgres_url, request):
    """Return the URL of a login, which leaves with the test."""
    if not postgres_server.may_make_roles():
        pytest.skip("allowed: the role that the tests connect as may not make others")
    request.getfixturevalue("postgres_groups")
    with existing_logins(postgres_url) as create:
        url = create()
        yield url
        close_pool(url)


def _login_of(url):
    return re.match(r"postgresql://(\w+):", url)[1]


def test_many_writers(read, postgres_url, rollouts, postgres_programs):
    page = read(
        "docs/how-to/share-a-database.md",
        {
            "postgresql://rollouts@db.internal/replay": rollouts,
            SERVER_URL: postgres_url,
            ADMIN_URL: postgres_url,
            "rollouts": _login_of(rollouts),
        },
        programs=postgres_programs,
        not_run=frozenset({_create_database("replay")}),
    )
    assert {row.exp_meta.task_id[0] for row in page.names["buffer"]} == {"a", "b", "c"}
    assert "OK" in page.printed["sqlbuffer doctor"]
    assert "FAIL" not in page.printed["sqlbuffer doctor"]


def test_backup(read, postgres_url, make_database_url, postgres_programs):
    restored_url = make_database_url("postgresql")
    page = read(
        "docs/how-to/back-up.md",
        {SERVER_URL: postgres_url, RESTORED_URL: restored_url},
        programs=postgres_programs,
        not_run=frozenset({_create_database("restored")}),
    )
    doctor = page.printed["sqlbuffer doctor copy.db --full"]
    assert "OK" in doctor
    # The checklist: doctor is content, and both list the same.
    findings = page.printed[f"sqlbuffer doctor {RESTORED_URL}"].splitlines()
    assert {line[:5] for line in findings} <= {"OK   ", "WARN "}
    assert [line for line in findings if line.startswith("WARN") and "fsync" not in line] == []
    assert "walk" in page.printed[f"sqlbuffer ls {RESTORED_URL}"]
    assert "WARN journal" not in doctor
    assert scalar("sqlite:///copy.db", "PRAGMA journal_mode") == "wal"
    before, after = (
        scalar(url, "SELECT last_value FROM sqlbuffer_seq_1")
        for url in (postgres_url, restored_url)
    )
    assert after == before + 1


@pytest.mark.each_value
@both_layouts
@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_a_restored_dump_goes_on_as_the_original_would(
    postgres_url, make_database_url, postgres_programs, tmp_path, make_buffer, evict_by
):
    restored_url = make_database_url("postgresql")
    original = make_buffer(postgres_url, max_capacity=50, evict_by=evict_by, create=True)
    original.store_batch(_rollouts(range(8)))
    dump = tmp_path / "replay.dump"
    _run(postgres_programs / "pg_dump", "--format=custom", f"--file={dump}", postgres_url)
    _run(postgres_programs / "pg_restore", "--exit-on-error", f"--dbname={restored_url}", dump)
    restored = make_buffer(restored_url)
    assert list(restored) == list(original)
    assert len(restored) == len(original) == original.size()
    for buffer in (original, restored):
        buffer.store_batch(_rollouts(range(20, 25)))
    assert [row.seq for row in restored] == [row.seq for row in original]
    assert len(restored) == restored.size() == len(original)
    # A buffer that is new there gets a sequence of its own.
    with make_buffer(restored_url, name="new", max_capacity=2) as new:
        new.store_batch(_rollouts([99])[:3])
        assert [row.seq for row in new] == [2, 3]
    original.close()


def _rollouts(tasks):
    return [
        DataRow(
            ExpMeta(f"task-{task}", None, "a", step, 1.0, episode_id=f"e{step % 2}"),
            Experience(state={"x": float("nan"), "frame": np.ones(3)}, actions=[step]),
        )
        for task in tasks
        for step in range(10)
    ]


def _run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def _create_database(name):
    # The databases of the tests have names of their own.
    return f'psql postgresql://postgres@db.internal/postgres -c "CREATE DATABASE {name} OWNER me"'


def test_schema(read, postgres_url, rollouts, postgres_programs):
    pytest.importorskip("pandas", reason="allowed: pandas is not installed")
    for url in (SQLITE_URL, postgres_url):
        with ReplayBuffer(
            url, "chunked", create=True, fields={"obs": ("float32", (2,))}
        ) as chunked:
            chunked.extend({"obs": np.ones((3, 2))}, casting="unsafe")
    for url in (SQLITE_URL, postgres_url):
        with ReplayBuffer(url, create=True) as buffer:
            buffer.store_batch(
                [make_array_row(task=n // 4, step=n % 4, episode_id=str(n % 2)) for n in range(12)]
            )
            meta = next(iter(buffer)).exp_meta
            buffer.end_episode(meta.episode_id, meta.task_id)
    urls = {SERVER_URL: postgres_url, ADMIN_URL: postgres_url, "alice": _login_of(rollouts)}
    page = read("docs/reference/views.md", urls, programs=postgres_programs)
    page.names["engine"].dispose()
    assert len(page.names["tasks"]) == 3
    (line,) = (line for line in page.printed if line.startswith("psql") and "v_tasks" in line)
    assert "(4 rows)" in page.printed[line]  # the tasks of both buffers
    page = read("docs/reference/tables.md", urls, programs=postgres_programs)
    page.names["connection"].close()
    page.names["engine"].dispose()
    assert page.names["observation"].dtype == np.float32


def _is_sqlite3(line):
    return line.startswith("sqlite3 ")


SQLITE3_LINES = [
    line for document in sorted(pages()) for line in all_commands(document) if _is_sqlite3(line)
]


@pytest.mark.parametrize("line", SQLITE3_LINES)
def test_what_the_pages_ask_of_the_program_sqlite3(line, tmp_path):
    if shutil.which("sqlite3") is None:
        pytest.skip("allowed: no program sqlite3 on this machine")
    with ReplayBuffer(f"sqlite:///{tmp_path}/replay.db") as buffer:
        buffer.add(task_id="seen", step=1)
        _run("bash", "-c", f"cd {tmp_path} && {line}")
    copies = [path for path in tmp_path.glob("*.db") if path.name != "replay.db"]
    assert len(copies) == (".backup" in line)
    for path in copies:
        with ReplayBuffer(f"sqlite:///{path}", create=False) as copy:
            assert [row.exp_meta.task_id for row in copy] == ["seen"]


def test_the_weighted_sampler_of_the_page_draws_with_the_probability_that_it_says(read, schema_url):
    """Test the first row of a batch with 15 degrees of freedom, at p = 0.001."""
    sampler = read("docs/how-to/write-a-sampler.md").names["RewardWeighted"](seed=5)
    weights = np.arange(1.0, 17.0)
    with ReplayBuffer(schema_url) as buffer:
        buffer.store_batch(
            [
                DataRow(ExpMeta("t", None, "a", step, 0.0), Experience(reward_t=weight))
                for step, weight in enumerate([*weights, 0.0, None])
            ]
        )
        firsts = [buffer.sample(2, sampler=sampler)[0].exp_meta.step for _ in range(1_500)]
    expected = 1_500 * weights / weights.sum()
    statistic = ((np.bincount(firsts, minlength=16) - expected) ** 2 / expected).sum()
    assert statistic < 37.7


# The site that `make docs` has built, without a warning or a library of another extra.


SITE = ROOT / "docs" / "_build"


@pytest.mark.skipif(not SITE.is_dir(), reason="allowed: `make docs` has not been run")
def test_the_site_has_all_pages_and_links_to_them():
    index = (SITE / "index.html").read_text(encoding="utf-8")
    assert index.count('class="toctree-l1"') == len(pages()) - 2  # the README, and itself
    buffer = (SITE / "reference/api/buffer.html").read_text(encoding="utf-8")
    assert 'id="sqlbuffer.ReplayBuffer.sample_transitions"' in buffer
    assert 'href="../errors.html#fielderror"' in buffer


# The tutorial that needs the programs of PostgreSQL.


LOGINS = {"robots": "secret-1", "trainer": "secret-2", "alice": "secret-3"}


@pytest.fixture
def logins(postgres_server, postgres_url, request):
    """Yield a name for each login of the page; the logins that the page creates leave with it."""
    if not postgres_server.may_make_roles():
        pytest.skip("allowed: the role that the tests connect as may not make others")
    request.getfixturevalue("postgres_groups")
    names = {login: f"sqlbuffer_test_{uuid.uuid4().hex[:8]}" for login in LOGINS}
    yield names
    for login, name in names.items():
        close_pool(logged_in(postgres_url, name, LOGINS[login]))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        found = connection.execute("SELECT rolname FROM pg_roles").fetchall()
        for name in {name for (name,) in found} & set(names.values()):
            execute(connection, "REASSIGN OWNED BY {} TO CURRENT_USER", name)
            execute(connection, "DROP OWNED BY {}", name)
            execute(connection, "DROP ROLE {}", name)


def test_team_postgresql(read, postgres_url, logins, postgres_programs):
    urls = {
        f"postgresql://{login}:{password}@db.internal/replay": logged_in(
            postgres_url, logins[login], password
        )
        for login, password in LOGINS.items()
    }
    create = 'psql postgresql://postgres@db.internal/postgres -c "CREATE DATABASE replay OWNER me"'
    page = read(
        "docs/tutorials/team-postgresql.md",
        {**urls, SERVER_URL: postgres_url, ADMIN_URL: postgres_url, **logins},
        programs=postgres_programs,
        not_run=frozenset({create}),
    )
    (line,) = (line for line in page.printed if line.startswith("psql") and "SELECT" in line)
    assert re.findall(r"^ (\w+) +\| +50 \|", page.printed[line], re.MULTILINE) == [
        "a",
        "b",
        "laptop",
    ]
    assert "FAIL" not in page.printed["sqlbuffer doctor postgresql://me@db.internal/replay"]
    with ReplayBuffer("sqlite:///home.db", name="cartpole", create=False) as home:
        assert {row.exp_meta.agent_id for row in home} == {"a"}
