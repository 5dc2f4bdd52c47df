"""Every example of the pages in `docs/` runs, in order, as a reader would type it."""

import re
from pathlib import Path

import numpy as np
import pytest

from sqlbuffer import LatestSampler, ReplayBuffer
from tests.docs.pages import (
    SERVER_URL,
    SQLITE_URL,
    all_commands,
    fenced_blocks,
    pages,
    text_of,
)
from tests.support.sql import run, scalar

# Each has a test that reads it: here, in test_readme.py, among the integrations, or in tests/peers.
# Figures are checked where they are made.
READ = {
    "README.md",
    "docs/how-to/store-arrays.md",
    "docs/how-to/back-up.md",
    "docs/coming-from/aworld.md",
    "docs/coming-from/di-engine.md",
    "docs/coming-from/memmap.md",
    "docs/coming-from/minestudio.md",
    "docs/how-to/record-an-environment.md",
    "docs/how-to/record-episodes.md",
    "docs/how-to/store-episodes.md",
    "docs/how-to/run-the-examples.md",  # the programs that it is about have tests of their own
    "docs/how-to/train-on-fragments.md",
    "docs/how-to/export-to-hugging-face.md",  # in tests/peers
    "docs/index.md",
    "docs/how-to/export-and-import.md",  # in tests/peers
    "docs/how-to/add-late-rewards.md",
    "docs/how-to/lease-batches.md",
    "docs/how-to/lease-groups.md",
    "docs/how-to/limit-reuse.md",
    "docs/how-to/load-batches.md",
    "docs/how-to/log-samples.md",
    "docs/how-to/mix-buffers.md",
    "docs/how-to/resume-a-loader.md",
    "docs/how-to/use-sessions.md",
    "docs/how-to/use-torch-workers.md",
    "docs/how-to/share-a-database.md",
    "docs/how-to/exchange-minari-data-sets.md",  # in tests/peers
    "docs/how-to/use-the-orm.md",
    "docs/how-to/pace-collectors.md",
    "docs/performance.md",
    "docs/concepts/columns.md",  # in test_concepts.py
    "docs/concepts/folders.md",  # in test_concepts.py
    "docs/concepts/guarantees.md",  # in test_concepts.py
    "docs/concepts/overview.md",  # in test_concepts.py
    "docs/concepts/which-call.md",  # in test_concepts.py
    "docs/contributing/benchmarks.md",
    "docs/how-to/draw-by-priority.md",
    "docs/how-to/quarantine-rows.md",
    "docs/how-to/compare-values.md",
    "docs/how-to/filter-rows.md",
    "docs/how-to/inspect-conditions.md",
    "docs/tutorials/agent-rollouts.md",  # in test_tutorials.py
    "docs/tutorials/dataframes.md",  # in tests/peers
    "docs/tutorials/dqn.md",  # in tests/peers
    "docs/tutorials/quickstart.md",
    "docs/tutorials/team-postgresql.md",  # among the integrations
    "docs/how-to/read-with-ray.md",  # in tests/peers
    "docs/concepts/mirror.md",
    "docs/how-to/convert-batches.md",
    "docs/how-to/sample-rows.md",
    "docs/how-to/share-a-mirror.md",
    "docs/how-to/write-a-sampler.md",
    "docs/reference/schema.md",
    "docs/reference/settings.md",
    "docs/how-to/train-with-stable-baselines3.md",  # in tests/peers
    "docs/how-to/stack-frames.md",
    "docs/how-to/limit-staleness.md",
    "docs/how-to/draw-from-memory.md",
    "docs/how-to/draw-transitions.md",
    "docs/how-to/watch-a-run.md",
    "docs/how-to/look-in-the-browser.md",
}
# Made of docstrings, whose examples run; see test_api_pages.py.
API = {page for page in pages() if page.startswith("docs/reference/api/")}
LANGUAGES = {"python", "console", "sql", "postgresql", "text"}


def test_every_page_is_read_by_a_test():
    assert set(pages()) == READ | API


@pytest.mark.parametrize("document", sorted(READ))
def test_blocks_are_of_a_kind_that_tests_know(document):
    fences = re.findall(r"^```.*$", text_of(document), re.MULTILINE)
    blocks = fenced_blocks(document)
    assert len(fences) == 2 * len(blocks), "a fence without a language, or without an end"
    assert {block.language for block in blocks} <= LANGUAGES


def test_arrays(read):
    page = read("docs/how-to/store-arrays.md")
    page.names["env"].close()
    buffer = page.names["buffer"]
    assert len(buffer) == 200
    batch = buffer.sample_arrays(200, sampler=LatestSampler())
    np.testing.assert_array_equal(batch.obs[0], np.float32(page.names["steps"]["obs"][-1]))
    assert set(batch.info["task_id"]) == {"pendulum"}
    assert (batch.level == 1).all()


def test_episodes(read):
    page = read("docs/how-to/record-episodes.md")
    assert page.names["episode"].episode_return == 5.0


def test_whole_episodes_are_stored_as_the_page_shows(read):
    read("docs/how-to/store-episodes.md")
    assert run(SQLITE_URL, "SELECT length, episode_return FROM v_episodes") == [(10, 10.0)]


def test_environments_are_recorded_as_the_page_shows(read):
    page = read("docs/how-to/record-an-environment.md")
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
    page = read("docs/how-to/draw-transitions.md")
    batch = page.names["batch"]
    assert set(batch.info["n_steps"]) <= {1, 2, 3}
    returns = [sum(0.99**k for k in range(m)) for m in batch.info["n_steps"]]
    np.testing.assert_allclose(page.names["target"], returns, rtol=1e-6)
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_episodes WHERE buffer = 'episodes'") == 20

    assert page.names["told"].terminated.any()


def test_stacks(read):
    page = read("docs/how-to/stack-frames.md")
    batch = page.names["batch"]
    is_first = batch.info["t"] == 0
    np.testing.assert_array_equal(batch.obs[is_first], batch.obs[is_first][:, -1:].repeat(4, 1))
    whole = page.names["buffer"].sample_transitions(300, n_step=3, stack={"obs": 4, "action": 3})
    assert whole.action.shape == (300, 3)
    assert whole.obs.dtype == whole.next_obs.dtype == np.uint8


def test_settings(read):
    page = read("docs/reference/settings.md")
    stored = page.names["config"]
    assert ReplayBuffer("sqlite:///other.db", "train", create=False).config == stored
    assert ReplayBuffer(SQLITE_URL, "small").max_capacity == 50


def test_settings_names_each_setting_with_its_group_and_default():
    from sqlbuffer.config.buffer_config import DEFAULT_CONFIG, PLACES
    from sqlbuffer.config.connection import DEFAULT_CONNECTION

    stored, own = (
        re.findall(r"^\|.*`.*\|$", part, re.MULTILINE)
        for part in text_of("docs/reference/settings.md").split("## What an opener chooses")
    )
    assert len(stored) == len(PLACES)
    group = ""
    for line, (setting, (group_of, name)) in zip(stored, PLACES.items(), strict=True):
        first, second, default, _ = (cell.strip() for cell in line.strip("|").split("|"))
        group = first.strip("`") or group
        shown = f"`{setting}`" if name == setting else f"`{setting}` (`{name}`)"
        assert (group, second) == (group_of, shown)
        value = DEFAULT_CONFIG.settings()[setting]
        words = {"None": ("unlimited", "none"), "{}": ("none",), "()": ("`obs`",)}
        number = f"{value:,.10g}" if type(value) in (int, float) else f"`{value}`"
        assert default in words.get(str(value), (str(value), number))
    assert [line.split("`")[1] for line in own] == list(type(DEFAULT_CONNECTION).model_fields)


@pytest.mark.slow
def test_pacing(read):
    page = read("docs/how-to/pace-collectors.md")
    assert page.names["flow"].policy.error_buffer == 512
    assert page.names["buffer"].flow().policy.max_ratio == 0.5


@pytest.mark.slow
def test_watching(read):
    pytest.importorskip("tensorboardX", reason="allowed: tensorboardX is not installed")
    pytest.importorskip("prometheus_client", reason="allowed: prometheus_client is not installed")
    page = read("docs/how-to/watch-a-run.md")
    (events,) = Path("runs/first").iterdir()
    assert events.stat().st_size > 500
    assert page.names["stats"].sample_rate > 0


def test_watching_names_every_figure():
    from sqlbuffer.stats import Stats

    text = text_of("docs/how-to/watch-a-run.md")
    names = {*Stats.__dataclass_fields__, "fill", "samples_per_insert"} - {"buffer", "window_s"}
    assert [name for name in names if f"`{name}`" not in text] == []


def test_a_mirror_draws_as_the_page_shows(read):
    page = read("docs/how-to/draw-from-memory.md")
    assert page.names["batch"].n_rows == 256


def test_processes_share_a_mirror_as_the_page_shows(read):
    page = read("docs/how-to/share-a-mirror.md")
    assert page.names["first"].path == page.names["second"].path


def test_staleness_is_limited_as_the_page_shows(read):
    page = read("docs/how-to/limit-staleness.md")
    assert set(page.names["batch"].info["seq"].tolist()) <= set(range(51, 151))


def test_reuse_is_limited_as_the_page_shows(read):
    read("docs/how-to/limit-reuse.md")
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_experiences") == 10


def test_sessions_are_kept_apart_as_the_page_shows(read):
    assert read("docs/how-to/use-sessions.md").names["session"] == "run-1"


def test_samples_are_logged_as_the_page_shows(read):
    page = read("docs/how-to/log-samples.md")
    batches = "SELECT DISTINCT batch_id, clock FROM v_samples ORDER BY batch_id"
    first, second = page.names["batch"].info["batch_id"][0], page.names["rows"].batch_id
    assert run(SQLITE_URL, batches) == [(first, 5), (second, 5)]


def test_quarantine_takes_rows_out_and_puts_them_back(read):
    page = read("docs/how-to/quarantine-rows.md")
    assert page.names["buffer"].release([2]) == 1


def test_a_session_reads_and_inserts_as_the_page_on_the_orm_shows(read):
    page = read("docs/how-to/use-the-orm.md")
    assert [row.exp_meta.step for row in page.names["buffer"]] == list(range(21, 121))


def test_fragments(read):
    page = read("docs/how-to/train-on-fragments.md")
    with ReplayBuffer(SQLITE_URL, name="fragments") as buffer:
        assert len(buffer) == 3
    with ReplayBuffer(SQLITE_URL, name="small") as buffer:
        assert len(buffer) == 0
    assert page.names["row"].exp_data.state.keys() == {"recurrent"}


def test_groups_are_leased_as_the_page_shows(read):
    assert [len(group) for group in read("docs/how-to/lease-groups.md").names["batch"].groups] == [
        1
    ]


def test_leases(read):
    page = read("docs/how-to/lease-batches.md")
    assert page.names["rewards"] == [0.0, 0.0, 1.0]
    assert page.names["batch"].remaining_s == 0.0  # it ended with its block


def test_late_rewards(read):
    page = read("docs/how-to/add-late-rewards.md")
    assert page.names["buffer"].name == "rollouts"
    episodes = "SELECT episode_id, status, episode_return, reward FROM v_episodes"
    assert run(SQLITE_URL, episodes) == [("rollout-1", "complete", None, 1.0)]
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_labels") == 7


@pytest.mark.slow
def test_loader(read):
    pytest.importorskip("torch")
    page = read("docs/how-to/load-batches.md")
    assert page.names["step"] == 20
    assert page.names["batch"].n_rows == 64


def test_a_loader_goes_on_as_the_page_shows(read):
    assert read("docs/how-to/resume-a-loader.md").names["expected"].n_rows == 64


@pytest.mark.slow
def test_workers_of_torch_read_as_the_page_shows(read):
    pytest.importorskip("torch")
    assert len(read("docs/how-to/use-torch-workers.md").names["dataset"]) == 256


def test_buffers_are_mixed_as_the_page_shows(read):
    page = read("docs/how-to/mix-buffers.md")
    assert page.names["batch"].n_rows == 64


def test_quickstart(read, postgres_url):
    page = read("docs/tutorials/quickstart.md", {SERVER_URL: postgres_url})
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
    page = read("docs/how-to/filter-rows.md")
    sampled = page.printed["sqlbuffer sample replay.db -n 2 --eq task_id=maze --eq state.level=2"]
    assert "maze" in sampled
    assert "race" not in sampled
    with ReplayBuffer(SQLITE_URL) as buffer:
        assert buffer.size() == 10


def test_values_compare_as_the_page_shows(read):
    read("docs/how-to/compare-values.md")
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_experiences") == 3


def test_conditions_are_inspected_as_the_page_shows(read):
    assert len(read("docs/how-to/inspect-conditions.md").names["rows"]) == 12


def test_querying_names_every_operator_and_every_field():
    from sqlbuffer.query.paths import FIELDS
    from sqlbuffer.query.tree_checks import OPERATORS

    text = text_of("docs/how-to/filter-rows.md")
    methods = {{"in": "in_"}.get(name, name) for name in [*OPERATORS, "between"]}
    assert {name for name in methods if not re.search(rf"`{name}\b", text)} == set()
    fields = {name.rpartition(".")[2] for name in FIELDS}
    assert {name for name in fields if not re.search(rf"`(\w*\.)?{name}`", text)} == set()


def test_prioritized(read):
    names = read("docs/how-to/draw-by-priority.md").names
    assert set(names["batch"]) >= {"weights", "probabilities", "priorities", "seq"}
    assert names["errors"].shape == (64,)
    # Rows of large errors are drawn more often.
    assert names["later"].priorities.mean() > names["all_priorities"].mean()
    assert names["filtered"].probabilities is None
    assert (names["exact"].probabilities > 1 / 400).all()


@pytest.mark.slow
def test_rows_are_sampled_as_the_page_shows(read):
    assert read("docs/how-to/sample-rows.md").names["first"]._seeding.seed == 7


@pytest.mark.slow
def test_batches_are_converted_as_the_page_shows(read):
    page = read("docs/how-to/convert-batches.md")
    assert page.names["columns"]["state"].dtype == np.float32


@pytest.mark.slow
def test_samplers_are_written_as_the_page_shows(read):
    page = read("docs/how-to/write-a-sampler.md")
    assert sorted(page.names["drawn"]) == sorted(f"task-{n}" for n in range(20))


def test_the_pages_name_every_sampler_and_all_that_candidates_offer():
    from sqlbuffer import Candidates, samplers

    text = text_of("docs/how-to/sample-rows.md") + text_of("docs/how-to/write-a-sampler.md")
    assert [name for name in samplers.__all__ if name not in text] == []
    # These are what the buffer itself calls with the sampler's choice.
    inner = {"rows", "numbers", "n_probed", "n_hits"}
    # And these what draws by priority look at.
    inner |= {"matching", "in_window", "has_condition", "is_filtered", "picks_keys"}
    offered = {name for name in vars(Candidates) if not name.startswith("_")} - inner
    offered |= {"low", "high", "selective", "connection"}
    assert {name for name in offered if not re.search(rf"`{name}\b", text)} == set()


def test_coming_from_aworld(read):
    page = read("docs/coming-from/aworld.md")
    from sqlbuffer.compat.aworld.common import ActionModel, Observation

    ((row, *_),) = page.names["tasks"]
    assert isinstance(row.exp_data.state, Observation)
    assert isinstance(row.exp_data.actions[0], ActionModel)
    assert ReplayBuffer.list(SQLITE_URL) == ["default"]


def test_coming_from_aworld_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat.aworld.alternatives import ALTERNATIVES

    text = text_of("docs/coming-from/aworld.md")
    assert [name for name in ALTERNATIVES if f"`{name}`" not in text] == []
    assert {"SQLStorage", "InMemoryStorage", "MultiProcMemoryStorage"} <= set(
        re.findall(r"(\w+Storage)\(", text)
    )


def test_coming_from_memmap(read):
    pytest.importorskip("torch")
    page = read("docs/coming-from/memmap.md")
    assert page.names["batch"].state_.shape == (16, 3)
    assert Path("replay_data/replay.sqlite").exists()


def test_coming_from_memmap_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat import memmap
    from sqlbuffer.compat.memmap.alternatives import ALTERNATIVES

    text = text_of("docs/coming-from/memmap.md")
    classes = {name for name in ALTERNATIVES if name.startswith("ReplayBuffer")}
    classes |= {"ConcatReplayBuffer", "EpisodeCollector"}
    classes |= {name for name in memmap.__all__ if name.startswith("ReplayDataset")}
    assert {name for name in classes if f"`{name}`" not in text} == set()


def test_coming_from_minestudio(read):
    page = read("docs/coming-from/minestudio.md")
    assert page.names["part"].next_obs is None
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_item_groups WHERE ready") == 4


def test_coming_from_minestudio_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat import minestudio
    from sqlbuffer.compat.minestudio.alternatives import ALTERNATIVES
    from sqlbuffer.compat.minestudio.config import Config

    text = text_of("docs/coming-from/minestudio.md")
    types = {name for name in minestudio.__all__ if name.startswith(("Fragment", "Replay"))}
    types -= {"FragmentError", "FragmentNotFoundError", "FragmentTypeError"}
    records = {name for name in ALTERNATIVES if name.endswith(("Actor", "Record", "Manager"))}
    names = {*types, *records, *Config.model_fields}
    assert {name for name in names if not re.search(rf"`{name}\b", text)} == set()


@pytest.mark.slow
def test_coming_from_di_engine(read):
    page = read("docs/coming-from/di-engine.md")
    assert page.names["row"].exp_data.reward_t == 1.0
    assert Path("checkpoints/buffer.hkl").exists()


def test_coming_from_di_engine_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat import ding
    from sqlbuffer.compat.ding.alternatives import ALTERNATIVES

    text = text_of("docs/coming-from/di-engine.md")
    classes = {name for name in [*ALTERNATIVES, *ding.__all__] if "Buffer" in name}
    classes -= {"UnknownBufferError"}
    assert {name for name in classes if f"`{name}`" not in text} == set()


@pytest.mark.parametrize("document", ["docs/performance.md", "docs/contributing/benchmarks.md"])
def test_pages_on_performance_name_commands_that_there_are(read, document):
    page = read(document)
    assert {line.split()[0] for line in all_commands(document)} == {"make"}
    assert page.printed == {}


def test_web(read):
    ReplayBuffer(SQLITE_URL, name="rollouts").close()
    page = read("docs/how-to/look-in-the-browser.md")
    assert "<h1>rollouts</h1>" in Path("report.html").read_text(encoding="utf-8")
    assert [route.path for route in page.names["yours"].routes] == ["/replay"]
