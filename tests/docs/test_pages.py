"""Every example of the pages in `docs/` runs, in order, as a reader would type it."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import psycopg
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, LatestSampler, ReplayBuffer
from tests.cli.conftest import existing_logins
from tests.conftest import close_pool
from tests.docs.pages import (
    SERVER_URL,
    SQLITE_URL,
    all_commands,
    fenced_blocks,
    pages,
    text_of,
)
from tests.support.array_rows import make_array_row
from tests.support.sql import run, scalar

ADMIN_URL = "postgresql://postgres@db.internal/replay"
RESTORED_URL = "postgresql://me@db.internal/restored"
# Each has a test here that reads it, or in test_readme.py. Figures are checked where they are made.
READ = {
    "README.md",
    "docs/arrays.md",
    "docs/backup.md",
    "docs/coming-from-aworld.md",
    "docs/coming-from-di-engine.md",
    "docs/coming-from-memmap.md",
    "docs/coming-from-minestudio.md",
    "docs/episodes.md",
    "docs/examples.md",  # the programs that it is about have tests of their own
    "docs/fragments.md",
    "docs/index.md",
    "docs/late-rewards.md",
    "docs/leases.md",
    "docs/loader.md",
    "docs/many-writers.md",
    "docs/pacing.md",
    "docs/performance.md",
    "docs/prioritized.md",
    "docs/quarantine.md",
    "docs/querying.md",
    "docs/quickstart.md",
    "docs/sampling.md",
    "docs/schema.md",
    "docs/stacks.md",
    "docs/staleness.md",
    "docs/transitions.md",
    "docs/watching.md",
}
LANGUAGES = {"python", "console", "sql", "postgresql", "text"}


def test_every_page_is_read_by_a_test():
    assert set(pages()) == READ


@pytest.mark.parametrize("document", sorted(READ))
def test_blocks_are_of_a_kind_that_tests_know(document):
    fences = re.findall(r"^```.*$", text_of(document), re.MULTILINE)
    blocks = fenced_blocks(document)
    assert len(fences) == 2 * len(blocks), "a fence without a language, or without an end"
    assert {block.language for block in blocks} <= LANGUAGES


def test_arrays(read):
    page = read("docs/arrays.md")
    page.names["env"].close()
    buffer = page.names["buffer"]
    assert len(buffer) == 200
    batch = buffer.sample_arrays(200, sampler=LatestSampler())
    np.testing.assert_array_equal(batch.obs[0], np.float32(page.names["steps"]["obs"][-1]))
    assert set(batch.info["task_id"]) == {"pendulum"}
    assert (batch.level == 1).all()


def test_episodes(read):
    page = read("docs/episodes.md")
    page.names["env"].close()
    page.names["envs"].close()
    cartpole = page.names["cartpole"]
    rows = "SELECT agent_id, status, count(*), sum(length) FROM v_episodes WHERE buffer = "
    found = run(SQLITE_URL, f"{rows}'recorded' GROUP BY agent_id, status ORDER BY agent_id")
    assert [(agent, status) for agent, status, *_ in found] == [
        ("four", "complete"),
        ("random", "complete"),
    ]
    assert sum(steps for *_, steps in found) == len(cartpole) == 300
    versions = "SELECT DISTINCT model_version FROM v_episodes WHERE agent_id = 'random' ORDER BY 1"
    assert run(SQLITE_URL, versions) == [(1,), (2,)]


def test_transitions(read):
    page = read("docs/transitions.md")
    batch = page.names["batch"]
    assert set(batch.info["n_steps"]) <= {1, 2, 3}
    returns = [sum(0.99**k for k in range(m)) for m in batch.info["n_steps"]]
    np.testing.assert_allclose(page.names["target"], returns, rtol=1e-6)
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_episodes WHERE buffer = 'episodes'") == 20

    assert page.names["told"].terminated.any()


def test_stacks(read):
    page = read("docs/stacks.md")
    batch = page.names["batch"]
    is_first = batch.info["t"] == 0
    np.testing.assert_array_equal(batch.obs[is_first], batch.obs[is_first][:, -1:].repeat(4, 1))
    whole = page.names["buffer"].sample_transitions(300, n_step=3, stack={"obs": 4, "action": 3})
    assert whole.action.shape == (300, 3)
    assert whole.obs.dtype == whole.next_obs.dtype == np.uint8


def test_pacing(read):
    page = read("docs/pacing.md")
    assert page.names["flow"].policy.error_buffer == 512
    assert page.names["buffer"].flow().policy.max_ratio == 0.5


@pytest.mark.slow
def test_watching(read):
    pytest.importorskip("tensorboardX", reason="allowed: tensorboardX is not installed")
    pytest.importorskip("prometheus_client", reason="allowed: prometheus_client is not installed")
    page = read("docs/watching.md")
    (events,) = Path("runs/first").iterdir()
    assert events.stat().st_size > 500
    assert page.names["stats"].sample_rate > 0


def test_watching_names_every_figure():
    from sqlbuffer.stats import Stats

    text = text_of("docs/watching.md")
    names = {*Stats.__dataclass_fields__, "fill", "samples_per_insert"} - {"buffer", "window_s"}
    assert [name for name in names if f"`{name}`" not in text] == []


def test_staleness_is_limited_counted_and_noted_as_the_page_shows(read):
    page = read("docs/staleness.md")
    assert page.names["buffer"].clock == 5
    assert set(page.names["batch"].info["seq"].tolist()) <= set(range(101, 151))


def test_quarantine_takes_rows_out_and_puts_them_back(read):
    page = read("docs/quarantine.md")
    assert page.names["buffer"].release([2]) == 1


def test_fragments(read):
    page = read("docs/fragments.md")
    with ReplayBuffer(SQLITE_URL, name="fragments") as buffer:
        assert len(buffer) == 3
    with ReplayBuffer(SQLITE_URL, name="small") as buffer:
        assert len(buffer) == 0
    assert page.names["row"].exp_data.state.keys() == {"recurrent"}


def test_leases(read):
    page = read("docs/leases.md")
    assert page.names["rewards"] == [0.0, 0.0, 1.0]
    assert page.names["batch"].remaining_s == 0.0  # it ended with its block


def test_late_rewards(read):
    page = read("docs/late-rewards.md")
    assert page.names["buffer"].name == "rollouts"
    episodes = "SELECT episode_id, status, episode_return, reward FROM v_episodes"
    assert run(SQLITE_URL, episodes) == [("rollout-1", "complete", None, 1.0)]
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_labels") == 7


@pytest.mark.slow
def test_loader(read):
    pytest.importorskip("torch")
    page = read("docs/loader.md")
    assert page.names["step"] == 20
    assert page.names["batch"].n_rows == 64


def test_quickstart(read, postgres_url):
    page = read("docs/quickstart.md", {SERVER_URL: postgres_url})
    assert len(page.names["batch"]) == 32
    assert {row.exp_meta.task_id for row in page.names["batch"]} <= {f"task-{n}" for n in range(5)}
    assert set(page.names["columns"]) == {"actions", "reward_t", "terminated"}
    assert ReplayBuffer.list(SQLITE_URL) == ["default", "typed"]
    assert ReplayBuffer.list(postgres_url) == ["default"]
    with ReplayBuffer(postgres_url) as buffer:
        assert list(buffer) == page.names["rows"]
    listing = page.printed["sqlbuffer ls replay.db"]
    assert "default" in listing
    assert "typed" in listing
    shown = page.printed["sqlbuffer show replay.db task-4 --buffer default"]
    assert "task-4" in shown
    assert shown.count("0.5") >= 25


def test_querying(read):
    page = read("docs/querying.md")
    sampled = page.printed["sqlbuffer sample replay.db -n 2 --eq task_id=maze --eq state.level=2"]
    assert "maze" in sampled
    assert "race" not in sampled
    with ReplayBuffer(SQLITE_URL) as buffer:
        assert buffer.size() == 13


def test_querying_names_every_operator_and_every_field():
    from sqlbuffer.query.paths import FIELDS
    from sqlbuffer.query.tree_checks import OPERATORS

    text = text_of("docs/querying.md")
    methods = {{"in": "in_"}.get(name, name) for name in [*OPERATORS, "between"]}
    assert {name for name in methods if not re.search(rf"`{name}\b", text)} == set()
    fields = {name.rpartition(".")[2] for name in FIELDS}
    assert {name for name in fields if not re.search(rf"`(\w*\.)?{name}`", text)} == set()


def test_prioritized(read):
    names = read("docs/prioritized.md").names
    assert set(names["batch"]) >= {"weights", "probabilities", "priorities", "seq"}
    assert names["errors"].shape == (64,)
    # Rows of large errors are drawn more often.
    assert names["later"].priorities.mean() > names["all_priorities"].mean()
    assert names["filtered"].probabilities is None
    assert (names["exact"].probabilities > 1 / 400).all()


@pytest.mark.slow
def test_sampling(read):
    page = read("docs/sampling.md")
    assert page.names["first"]._seeding.seed == 7
    assert page.names["columns"]["state"].dtype == np.float32
    assert sorted(page.names["drawn"]) == sorted(f"task-{n}" for n in range(20))


def test_the_weighted_sampler_of_the_page_draws_with_the_probability_that_it_says(read, schema_url):
    """Test the first row of a batch with 15 degrees of freedom, at p = 0.001."""
    sampler = read("docs/sampling.md").names["RewardWeighted"](seed=5)
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


def test_sampling_names_every_sampler_and_all_that_candidates_offer():
    from sqlbuffer import Candidates, samplers

    text = text_of("docs/sampling.md")
    assert [name for name in samplers.__all__ if name not in text] == []
    # These are what the buffer itself calls with the sampler's choice.
    inner = {"rows", "numbers", "n_probed", "n_hits"}
    # And these what draws by priority look at.
    inner |= {"matching", "in_window", "has_condition", "is_filtered", "picks_keys"}
    offered = {name for name in vars(Candidates) if not name.startswith("_")} - inner
    offered |= {"low", "high", "selective", "connection"}
    assert {name for name in offered if not re.search(rf"`{name}\b", text)} == set()


@pytest.fixture
def rollouts(postgres_url, request):
    """Return the URL of a login, which leaves with the test."""
    with psycopg.connect(postgres_url) as connection:
        query = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
        if connection.execute(query).fetchone() != (True,):
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
        "docs/many-writers.md",
        {
            "postgresql://rollouts@db.internal/replay": rollouts,
            SERVER_URL: postgres_url,
            ADMIN_URL: postgres_url,
            "rollouts": _login_of(rollouts),
        },
        programs=postgres_programs,
        not_run=frozenset({_create_database("replay")}),
    )
    assert {f"{row.exp_meta.task_id[0]}" for row in page.names["buffer"]} == {
        "a",
        "b",
        "c",
        "t",
        "x",
    }
    with ReplayBuffer(SQLITE_URL, name="cartpole") as four:
        assert len(four) == 4 * 10 * 50
    assert "cartpole" in page.printed["sqlbuffer ls"]
    assert "OK" in page.printed["sqlbuffer doctor"]
    assert "FAIL" not in page.printed["sqlbuffer doctor"]


def test_backup(read, postgres_url, make_database_url, postgres_programs):
    restored_url = make_database_url("postgresql")
    page = read(
        "docs/backup.md",
        {SERVER_URL: postgres_url, RESTORED_URL: restored_url},
        programs=postgres_programs,
        not_run=frozenset({_create_database("restored")}),
    )
    doctor = page.printed["sqlbuffer doctor copy.db --full"]
    assert "OK" in doctor
    assert "WARN journal" not in doctor
    for path in ("copy.db", "small.db"):
        assert scalar(f"sqlite:///{path}", "PRAGMA journal_mode") == "wal"
    before, after = (
        scalar(url, "SELECT last_value FROM sqlbuffer_seq_1")
        for url in (postgres_url, restored_url)
    )
    assert after == before + 1


@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_a_restored_dump_goes_on_as_the_original_would(
    postgres_url, make_database_url, postgres_programs, tmp_path, evict_by
):
    restored_url = make_database_url("postgresql")
    original = ReplayBuffer(postgres_url, max_capacity=50, evict_by=evict_by, create=True)
    original.store_batch(_rollouts(range(8)))
    dump = tmp_path / "replay.dump"
    _run(postgres_programs / "pg_dump", "--format=custom", f"--file={dump}", postgres_url)
    _run(postgres_programs / "pg_restore", "--exit-on-error", f"--dbname={restored_url}", dump)
    restored = ReplayBuffer(restored_url)
    assert list(restored) == list(original)
    assert len(restored) == len(original) == original.size()
    for buffer in (original, restored):
        buffer.store_batch(_rollouts(range(20, 25)))
    assert [row.seq for row in restored] == [row.seq for row in original]
    assert len(restored) == restored.size() == len(original)
    # A buffer that is new there gets a sequence of its own.
    with ReplayBuffer(restored_url, name="new", max_capacity=2) as new:
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


def test_coming_from_aworld(read):
    page = read("docs/coming-from-aworld.md")
    from sqlbuffer.compat.aworld.common import ActionModel, Observation

    ((row, *_),) = page.names["tasks"]
    assert isinstance(row.exp_data.state, Observation)
    assert isinstance(row.exp_data.actions[0], ActionModel)
    assert ReplayBuffer.list(SQLITE_URL) == ["default"]


def test_coming_from_aworld_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat.aworld.alternatives import ALTERNATIVES

    text = text_of("docs/coming-from-aworld.md")
    assert [name for name in ALTERNATIVES if f"`{name}`" not in text] == []
    assert {"SQLStorage", "InMemoryStorage", "MultiProcMemoryStorage"} <= set(
        re.findall(r"(\w+Storage)\(", text)
    )


def test_coming_from_memmap(read):
    pytest.importorskip("torch")
    page = read("docs/coming-from-memmap.md")
    assert page.names["batch"].state_.shape == (16, 3)
    assert Path("replay_data/replay.sqlite").exists()


def test_coming_from_memmap_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat import memmap
    from sqlbuffer.compat.memmap.alternatives import ALTERNATIVES

    text = text_of("docs/coming-from-memmap.md")
    classes = {name for name in ALTERNATIVES if name.startswith("ReplayBuffer")}
    classes |= {"ConcatReplayBuffer", "EpisodeCollector"}
    classes |= {name for name in memmap.__all__ if name.startswith("ReplayDataset")}
    assert {name for name in classes if f"`{name}`" not in text} == set()


def test_coming_from_minestudio(read):
    page = read("docs/coming-from-minestudio.md")
    assert page.names["part"].next_obs is None
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_chunks WHERE ready") == 4


def test_coming_from_minestudio_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat import minestudio
    from sqlbuffer.compat.minestudio.alternatives import ALTERNATIVES
    from sqlbuffer.compat.minestudio.config import Config

    text = text_of("docs/coming-from-minestudio.md")
    types = {name for name in minestudio.__all__ if name.startswith(("Fragment", "Replay"))}
    types -= {"FragmentError", "FragmentNotFoundError", "FragmentTypeError"}
    records = {name for name in ALTERNATIVES if name.endswith(("Actor", "Record", "Manager"))}
    names = {*types, *records, *Config.model_fields}
    assert {name for name in names if not re.search(rf"`{name}\b", text)} == set()


def test_coming_from_di_engine(read):
    page = read("docs/coming-from-di-engine.md")
    assert page.names["row"].exp_data.reward_t == 1.0
    assert Path("checkpoints/buffer.hkl").exists()


def test_coming_from_di_engine_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat import ding
    from sqlbuffer.compat.ding.alternatives import ALTERNATIVES

    text = text_of("docs/coming-from-di-engine.md")
    classes = {name for name in [*ALTERNATIVES, *ding.__all__] if "Buffer" in name}
    classes -= {"UnknownBufferError"}
    assert {name for name in classes if f"`{name}`" not in text} == set()


def test_schema(read, postgres_url, rollouts, postgres_programs):
    pytest.importorskip("pandas", reason="allowed: pandas is not installed")
    for url in (SQLITE_URL, postgres_url):
        with ReplayBuffer(url, create=True) as buffer:
            buffer.store_batch(
                [make_array_row(task=n // 4, step=n % 4, episode_id=str(n % 2)) for n in range(12)]
            )
    page = read(
        "docs/schema.md",
        {SERVER_URL: postgres_url, ADMIN_URL: postgres_url, "alice": _login_of(rollouts)},
        programs=postgres_programs,
    )
    page.names["connection"].close()
    page.names["engine"].dispose()
    assert len(page.names["tasks"]) == 3
    assert page.names["observation"].dtype == np.float32
    (line,) = (line for line in page.printed if line.startswith("psql") and "v_tasks" in line)
    assert "(3 rows)" in page.printed[line]
    assert "GRANT ROLE" in "".join(page.printed.values())


def test_performance_page_names_commands_that_there_are(read):
    page = read("docs/performance.md")
    assert {line.split()[0] for line in all_commands("docs/performance.md")} == {"make"}
    assert page.printed == {}


def _is_sqlite3(line):
    return line.startswith("sqlite3 ")


SQLITE3_LINES = [
    line for document in sorted(READ) for line in all_commands(document) if _is_sqlite3(line)
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
