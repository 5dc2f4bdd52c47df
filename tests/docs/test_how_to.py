"""Every how-to page runs as a reader would type it; each has one task and few words."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sqlbuffer import LatestSampler, ReplayBuffer
from sqlbuffer.errors import BufferConfigError
from tests.docs.pages import SQLITE_URL, pages, text_of
from tests.support.sql import run, scalar

HOW_TO = {page for page in pages() if page.startswith("docs/how-to/")}
# Read among the integrations, in tests/peers, and in test_pages.py.
READ_ELSEWHERE = {
    f"docs/how-to/{name}.md"
    for name in (
        "append-parquet-files",
        "back-up",
        "copy-a-buffer",
        "deploy-with-compose",
        "encrypt-connections",
        "engines",  # in tests/storage/migrations
        "exchange-minari-data-sets",
        "export-and-import",
        "export-to-hugging-face",
        "handle-lost-connections",
        "monitor-and-alert",
        "read-from-a-standby",
        "read-with-ray",
        "run-the-examples",  # its programs have tests
        "set-up-roles",
        "share-a-database",
        "share-a-sqlite-file",
        "size-a-server",  # in tests/deploy
        "train-with-stable-baselines3",
        "train-with-torchrl",
        "upgrade-without-stopping",
        "use-pgbouncer-or-managed-postgresql",
        "watch-a-run",
    )
}


def test_every_how_to_page_is_read_by_a_test():
    here = re.findall(r'read\("(docs/how-to/.+?)"', Path(__file__).read_text(encoding="utf-8"))
    assert {*here, *READ_ELSEWHERE} == HOW_TO


def test_arrays(read):
    page = read("docs/how-to/store-arrays.md")
    page.names["env"].close()
    buffer = page.names["buffer"]
    assert len(buffer) == 200
    batch = buffer.sample_arrays(200, sampler=LatestSampler())
    np.testing.assert_array_equal(batch.obs[0], np.float32(page.names["steps"]["obs"][-1]))
    assert set(batch.info["task_id"]) == {"pendulum"}
    assert (batch.level == 1).all()


def test_conversations_are_stored_once(read):
    page = read("docs/how-to/share-messages.md")
    page.names["database"].close()
    assert len(page.names["buffer"]) == 3
    assert scalar(SQLITE_URL, "SELECT count(*) FROM messages") == 6


def test_whole_episodes_are_stored_as_the_page_shows(read):
    read("docs/how-to/store-episodes.md")
    assert run(SQLITE_URL, "SELECT length, episode_return FROM v_episodes") == [(10, 10.0)]


def test_several_agents_are_stored_as_the_page_shows(read):
    read("docs/how-to/use-several-agents.md")
    of_agents = (
        "SELECT agent_id, count(*) FROM v_episodes WHERE buffer = 'duel' GROUP BY 1 ORDER BY 1"
    )
    assert run(SQLITE_URL, of_agents) == [("blue", 6), ("red", 6)]


def test_rollouts_are_continued_as_the_page_shows(read):
    read("docs/how-to/continue-a-rollout.md")
    states = "SELECT status, count(*) FROM v_episodes GROUP BY 1 ORDER BY 1"
    assert run(SQLITE_URL, states) == [("complete", 2)]


def test_work_is_handed_out_as_the_page_shows(read):
    read("docs/how-to/hand-out-work.md")
    work = "SELECT buffer, status, count(*) FROM v_work GROUP BY 1, 2 ORDER BY 1, 2"
    assert run(SQLITE_URL, work) == [
        ("ahead", "done", 6), ("ahead", "waiting", 12),
        ("work", "done", 24), ("work", "waiting", 1),
    ]  # fmt: skip


def test_trajectories_are_exchanged_as_the_page_shows(read):
    page = read("docs/how-to/exchange-atif-trajectories.md")
    assert page.names["report"].skipped == {}


def test_flat_arrays_are_imported_as_the_page_shows(read):
    page = read("docs/how-to/import-flat-arrays.md")
    assert len(page.names["buffer"]) == 1_000
    assert list(ReplayBuffer("copy.db", name="offline").fields) == ["obs", "action"]
    # The attributes of an episode of d3rlpy 2.
    episodes = [
        SimpleNamespace(
            observations=np.full((4, 2), i, np.float32), actions=np.zeros((4, 1), np.float32),
            rewards=np.ones((4, 1), np.float32), terminated=i == 1,
        )
        for i in range(3)
    ]  # fmt: skip
    snippet = text_of("docs/how-to/import-flat-arrays.md").split("```text\n")[1].split("```")[0]
    d3rlpy = {"dataset": SimpleNamespace(episodes=episodes)}
    exec(snippet.replace("replay.db", "d3rlpy.db"), page.names | d3rlpy)
    with ReplayBuffer("d3rlpy.db", name="offline") as buffer:
        ends = [(row.exp_data.terminated, row.exp_data.truncated) for row in buffer][3::4]
    assert ends == [(False, True), (True, False), (False, True)]


def test_a_field_is_added_as_the_page_shows(read):
    page = read("docs/how-to/add-field.md")
    assert list(page.names["buffer"].fields) == ["obs", "action", "weight"]


def test_a_trainer_restarts_as_the_page_shows(read):
    page = read("docs/how-to/restart-from-a-checkpoint.md")
    assert len(page.names["model"]["trained"]) == 8


def test_rollouts_become_tensors_as_the_page_shows(read):
    page = read("docs/how-to/train-on-tokens.md")
    assert page.names["tokens"].logprobs[0].tolist() == pytest.approx([0, 0, -0.1, 0, -0.5, 0])


def test_recordings_are_merged_as_the_page_shows(read):
    page = read("docs/how-to/merge-recordings.md")
    assert page.names["both"].name == "default"


def test_episodes(read):
    page = read("docs/how-to/record-episodes.md")
    assert page.names["episode"].episode_return == 5.0


def test_structured_observations_are_nested_as_the_page_shows(read):
    page = read("docs/how-to/use-structured-observations.md")
    assert page.names["batch"].obs["arm"][1].shape == (16,)
    with ReplayBuffer(SQLITE_URL, "robot") as robot:
        assert robot.spaces.observation == page.names["Robot"].observation_space


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
    with ReplayBuffer(SQLITE_URL, page.names["buffer"].name) as buffer:
        whole = buffer.sample_transitions(300, n_step=3, stack={"obs": 4, "action": 3})
    assert whole.action.shape == (300, 3)
    assert whole.obs.dtype == whole.next_obs.dtype == np.uint8


def test_goals_in_hindsight(read):
    page = read("docs/how-to/relabel-goals.md")
    batch, buffer = page.names["batch"], page.names["buffer"]
    is_new = batch.info["relabelled"]
    assert is_new.sum() in (204, 205)
    assert (batch.info["goal_seq"][is_new] >= batch.info["seq"][is_new]).all()
    assert (batch.info["goal_seq"][~is_new] == -1).all()
    np.testing.assert_array_equal(batch.terminated[is_new], batch.discount[is_new] == 0)
    assert "HER" in text_of("docs/how-to/relabel-goals.md")
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_episodes WHERE status = 'complete'") == 20
    assert len(buffer) == 600


@pytest.mark.slow
def test_pacing(read):
    page = read("docs/how-to/pace-collectors.md")
    assert page.names["flow"].policy.error_buffer == 512
    assert page.names["buffer"].flow().policy.max_ratio == 0.5


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
    assert page.names["buffer"].release([1]) == 1


def test_a_session_reads_and_inserts_as_the_page_on_the_orm_shows(read):
    page = read("docs/how-to/use-the-orm.md")
    assert [row.exp_meta.step for row in page.names["buffer"]] == list(range(21, 121))


def test_fragments(read):
    read("docs/how-to/train-on-fragments.md")
    with ReplayBuffer(SQLITE_URL, name="fragments") as buffer:
        assert len(buffer) == 3
    with ReplayBuffer(SQLITE_URL, name="small") as buffer:
        assert len(buffer) == 0


def test_rows_are_read_in_part_as_the_page_shows(read):
    page = read("docs/how-to/read-in-part.md")
    assert page.names["row"].exp_data.state.keys() == {"recurrent"}


def test_groups_are_leased_as_the_page_shows(read):
    batch = read("docs/how-to/lease-groups.md").names["batch"]
    assert [len(group) for group in batch.groups] == [2]
    assert batch.n_skipped == 1


def test_leases(read):
    page = read("docs/how-to/lease-batches.md")
    assert page.names["rewards"] == [0.0, 0.0, 1.0]
    assert page.names["batch"].remaining_s == 0.0  # it ended with its block


def test_late_rewards(read):
    page = read("docs/how-to/add-late-rewards.md")
    assert page.names["buffer"].name == "rollouts"
    episodes = "SELECT episode_id, status, episode_return, reward FROM v_episodes "
    episodes += "WHERE buffer = 'rollouts'"
    verdicts = {f"prompt-3/{i}": reward for i, reward in enumerate([0.75, 0.25, 0.5, 1.0])}
    assert sorted(run(SQLITE_URL, episodes)) == [
        *((episode_id, "complete", None, reward) for episode_id, reward in verdicts.items()),
        ("prompt-4/0", "aborted", None, 0.0),
    ]
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_labels") == 9


def test_transactions(read):
    page = read("docs/how-to/change-several-things-at-once.md")
    assert [row.exp_data.state for row in page.names["buffer"].get_all()] == [1, 2, 3]
    assert page.names["buffer"].documents.get("cursor").version == 2


@pytest.mark.thorough
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


def test_ranks_divide_a_pass_as_the_page_shows(read):
    loader = read("docs/how-to/divide-a-pass-between-ranks.md").names["loader"]
    with pytest.raises(BufferConfigError, match="is closed"):  # at the end of the page
        next(iter(loader))


def test_buffers_are_mixed_as_the_page_shows(read):
    page = read("docs/how-to/mix-buffers.md")
    assert page.names["batch"].n_rows == 64


def test_querying(read):
    page = read("docs/how-to/filter-rows.md")
    sampled = page.printed["sqlbuffer sample replay.db -n 2 --eq task_id=maze --eq state.level=2"]
    assert "maze" in sampled
    assert "race" not in sampled
    with ReplayBuffer(SQLITE_URL) as buffer:
        assert buffer.size() == 18


def test_values_compare_as_the_page_shows(read):
    read("docs/how-to/compare-values.md")
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_experiences") == 3


def test_conditions_are_inspected_as_the_page_shows(read):
    assert len(read("docs/how-to/inspect-conditions.md").names["rows"]) == 12


def test_querying_names_every_operator_and_every_field():
    from sqlbuffer.query.tree import FIELDS, OPERATORS

    text = text_of("docs/how-to/filter-rows.md")
    methods = {{"in": "in_"}.get(name, name) for name in [*OPERATORS, "between"]}
    assert {name for name in methods if not re.search(rf"`{name}\b", text)} == set()
    fields = {name.rpartition(".")[2] for name in FIELDS}
    assert {name for name in fields if not re.search(rf"`(\w*\.)?{name}`", text)} == set()


def test_prioritized(read):
    names = read("docs/how-to/draw-by-priority.md").names
    assert set(names["batch"]) >= {"weights", "probabilities", "priorities", "seq"}
    assert names["errors"].shape == (64,)
    # Rows of large errors are drawn more often: in one batch of 256 by chance not always.
    assert names["later"].priorities.shape == (256,)
    draw = partial(names["buffer"].sample_transitions, 256, sampler=names["sampler"])
    drawn = np.mean([draw().priorities.mean() for _ in range(20)])
    assert drawn > names["all_priorities"].mean()
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
    inner = {"rows", "numbers", "table", "n_probed", "n_hits", "step_without_episode"}
    # And these what draws by priority look at.
    inner |= {"matching", "matching_in", "in_window", "has_condition", "is_filtered", "picks_keys"}
    # And these what draws by a remembered condition need.
    inner |= {"remembered", "scan", "matching_among"}
    offered = {name for name in vars(Candidates) if not name.startswith("_")} - inner
    offered |= {"low", "high", "selective", "connection"}
    assert {name for name in offered if not re.search(rf"`{name}\b", text)} == set()


def test_web(read):
    ReplayBuffer(SQLITE_URL, name="rollouts").close()
    page = read("docs/how-to/look-in-the-browser.md")
    assert ">rollouts</h1>" in Path("report.html").read_text(encoding="utf-8")
    assert [route.path for route in page.names["yours"].routes] == ["/replay"]


def test_lines_are_piped_as_the_page_shows(read):
    read("docs/how-to/pipe-json-lines.md")
    assert len(ReplayBuffer("sqlite:///piped.db", name="robot")) == 20


def test_a_buffer_is_streamed_as_the_page_shows(read):
    assert sum(read("docs/how-to/stream-a-buffer.md").names["counts"]) == 60


def test_the_size_is_limited_as_the_page_shows(read):
    read("docs/how-to/limit-size.md")
    assert ReplayBuffer(SQLITE_URL, name="newest").max_capacity is None
    left = "SELECT reason, steps FROM v_evictions WHERE buffer = 'newest'"
    assert run(SQLITE_URL, left) == [("capacity", 20 + 50)]


def test_rows_are_deleted_as_the_page_shows(read):
    read("docs/how-to/delete-rows.md")
    assert ReplayBuffer.list(SQLITE_URL) == []


def test_coroutines_store_and_lease_as_the_page_shows(read):
    read("docs/how-to/use-asyncio.md")
    assert scalar(SQLITE_URL, "SELECT count(*) FROM v_episodes WHERE status = 'complete'") == 4
