"""What the buffer refuses, keeps and continues."""

import importlib
import pickle
import subprocess
import sys
import time

import pytest
import torch
from tensordict import NonTensorData, TensorDict
from torchrl.data import RandomSampler
from torchrl.data import ReplayBuffer as TorchRLReplayBuffer
from torchrl.envs.transforms import RewardScaling

import sqlbuffer
from sqlbuffer import LatestSampler, PrioritizedSampler
from sqlbuffer.errors import (
    ArgumentError,
    BufferConfigError,
    BufferNotFoundError,
    FieldError,
    InsufficientDataError,
    MissingExtraError,
    SchemaMissingError,
)
from sqlbuffer.integrations.torchrl import SQLReplayBuffer
from tests.peers.torchrl.steps import Envs, assert_equal
from tests.support.sql import run


def test_it_is_a_replay_buffer_of_torchrl(schema_url):
    ours = SQLReplayBuffer(schema_url, "new", batch_size=4)
    assert isinstance(ours, TorchRLReplayBuffer)
    assert (len(ours), ours.write_count, ours.can_sample()) == (0, 0, False)
    assert (ours.storage, ours.writer, ours.sampler, ours.batch_size) == (None, None, None, 4)
    with pytest.raises(InsufficientDataError, match="has none yet; extend it"):
        ours.sample()
    with pytest.raises(BufferNotFoundError, match="made with the first batch"):
        assert ours.buffer
    assert ours.extend(Envs("flat").steps(3)[:0]).tolist() == []
    ours.extend(Envs("flat").steps(3))
    assert ours.stats()["size"] == len(ours) == ours.write_count == 3
    assert ours.can_sample()
    assert "new" in repr(ours)
    assert [batch.shape for batch, _ in zip(ours, range(3), strict=False)] == [(4,)] * 3


def test_an_example_makes_the_buffer_at_once(schema_url):
    example = Envs("agents", 2).steps(1)
    ours = SQLReplayBuffer(schema_url, example=example)
    assert len(ours.buffer) == len(ours) == 0
    assert ours.buffer.fields["agents_observation"].shape == (3, 4)
    assert set(ours.buffer.observation_fields) >= {"agents_observation"}
    again = SQLReplayBuffer(schema_url, example=example, create=False)
    again.extend(Envs("agents", 2).steps(4))
    assert len(ours) == 8
    with pytest.raises(FieldError, match="is missing; the steps of this buffer have it"):
        SQLReplayBuffer(schema_url, example=Envs("flat").steps(1))


def test_a_missing_buffer_is_refused_where_it_may_not_be_made(schema_url):
    with pytest.raises(BufferNotFoundError):
        SQLReplayBuffer(schema_url, create=False)


def test_a_new_database_is_made_as_the_argument_create_says(database_url):
    if database_url.startswith("sqlite"):
        SQLReplayBuffer(database_url).extend(Envs("flat").steps(2))
    else:
        with pytest.raises(SchemaMissingError):
            SQLReplayBuffer(database_url)
        SQLReplayBuffer(database_url, create=True).extend(Envs("flat").steps(2))
    assert len(SQLReplayBuffer(database_url, create=False)) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda td: td.exclude("action"), "'action' is missing"),
        (lambda td: td.set("action", td["action"].float()), "'action': expected int64 of shape"),
        (
            lambda td: td.set("observation", td["observation"][..., :2]),
            r"expected float32 of shape",
        ),
        (lambda td: td.set("action", NonTensorData("left", [4])), "'action' is a "),
        (lambda td: td.set("action", td["action"].bfloat16()), "numpy has no bfloat16"),
        (lambda td: td[0], "give a single one to add"),
        (lambda td: td.to_dict(), "is a TensorDict, got a dict"),
    ],
)
def test_other_entries_are_refused_by_name_and_store_nothing(schema_url, change, message):
    ours = SQLReplayBuffer(schema_url)
    ours.extend(Envs("flat").steps(4))
    with pytest.raises(FieldError, match=message):
        ours.extend(change(Envs("flat").steps(4)))
    assert len(ours) == 4


def test_a_buffer_of_another_class_is_refused_with_what_to_do(schema_url):
    with sqlbuffer.ReplayBuffer(schema_url, "recorded", fields={"obs": "float32"}) as recorded:
        recorded.extend({"obs": [1.0]})
    with pytest.raises(BufferConfigError, match=r"take another name, or draw from it with"):
        SQLReplayBuffer(schema_url, "recorded")
    sqlbuffer.ReplayBuffer(schema_url, "fields", fields={"obs": "float32"}).close()
    with pytest.raises(FieldError, match="obs"):
        SQLReplayBuffer(schema_url, "fields").extend(Envs("flat").steps(2))


def test_two_processes_may_begin_with_other_entries(schema_url):
    one, other = (SQLReplayBuffer(schema_url) for _ in range(2))
    data = Envs("flat").steps(3)
    data["loc"] = torch.ones(3, 2)
    one.extend(Envs("flat").steps(3))
    assert other.extend(data).tolist() == [4, 5, 6]
    assert one[:]["loc"].sum() == other[:]["loc"].sum() == 6


def test_entries_that_cannot_be_fields_are_refused_at_once():
    ours = SQLReplayBuffer("sqlite://")
    with pytest.raises(FieldError, match="'nothing' has no elements"):
        ours.extend(TensorDict({"nothing": torch.zeros(2, 0)}, [2]))
    with pytest.raises(FieldError, match="'name' is a "):
        ours.extend(TensorDict({"name": NonTensorData("a", [2])}, [2]))
    with pytest.raises(FieldError, match="have no entries"):
        ours.extend(TensorDict({}, [2]))


def test_entries_that_come_later_are_zeros_before(schema_url):
    ours, learner = (SQLReplayBuffer(schema_url, batch_size=64) for _ in range(2))
    envs = Envs("flat", 2)
    first = envs.steps(5)
    ours.extend(first)
    assert learner.sample().batch_size == (64,)
    second = envs.steps(5)
    second["loc"] = torch.rand(2, 5, 3)
    second["next", "loc"] = torch.rand(2, 5, 3)
    ours.extend(second)
    ours.extend(envs.steps(5))  # without it, as with random actions
    stored = ours[:]
    expected = torch.cat([torch.zeros(10, 3), second["loc"].reshape(10, 3), torch.zeros(10, 3)])
    assert torch.equal(stored["loc"], expected)
    deadline = time.monotonic() + 30
    while "loc" not in set(learner.sample().keys()):
        assert time.monotonic() < deadline
    again = SQLReplayBuffer(schema_url, batch_size=64, n_steps=2, gamma=0.9)
    assert again.sample()["next", "loc"].shape == (64, 3)


def test_entries_may_come_later_in_memory_too():
    ours = SQLReplayBuffer("sqlite://", batch_size=4)
    data = Envs("flat").steps(5)
    ours.extend(data.exclude("action"))
    ours.sample()
    ours.extend(data)
    assert torch.equal(
        ours[:]["action"], torch.cat([torch.zeros_like(data["action"]), data["action"]])
    )
    assert ours.sample()["action"].shape == (4, 3)


def test_names_that_the_library_uses_are_kept_apart():
    keys = ["state", "step", "reward", "next_x", "x", "obs_lens", "class", "_reset", "5", "a b"]
    data = TensorDict({key: torch.rand(6) for key in keys}, [6])
    data["a", "b"] = torch.rand(6)
    data["next", "x"] = torch.rand(6)
    ours = SQLReplayBuffer("sqlite://")
    ours.extend(data)
    assert_equal(ours[:], data.exclude("index"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"storage": None}, "takes no storage=...: the database stores the steps"),
        ({"writer": None}, "takes no writer="),
        ({"fields": {}}, "takes no fields=...: they are those of the first batch"),
        ({"n_steps": 3}, "needs gamma="),
        ({"n_steps": 3, "gamma": 0.9, "slice_len": 4}, "slice_len goes without n_steps"),
        ({"sampler": RandomSampler()}, "give a sampler of sqlbuffer"),
        ({"beta": 0.4}, "beta goes with alpha"),
    ],
)
def test_arguments_of_torchrl_are_refused_with_what_to_do(arguments, message):
    with pytest.raises(BufferConfigError, match=message):
        SQLReplayBuffer("sqlite://", **arguments)


def test_unknown_and_invalid_arguments_are_refused_by_name():
    with pytest.raises(ArgumentError, match="did you mean max_capacity"):
        SQLReplayBuffer("sqlite://", max_capacitty=3)
    with pytest.raises(ArgumentError, match="not a multiple of slice_len=3"):
        SQLReplayBuffer("sqlite://", slice_len=3, batch_size=4)
    ours = SQLReplayBuffer("sqlite://")
    ours.extend(Envs("flat").steps(4))
    for size in (0, -1, 2.5, True):
        with pytest.raises((ArgumentError, TypeError, ValueError)):
            ours.sample(size)
    with pytest.raises(RuntimeError, match="batch_size not specified"):
        ours.sample()


@pytest.mark.parametrize(
    "call",
    [
        lambda rb: rb.empty(),
        lambda rb: rb.set_sampler(RandomSampler()),
        lambda rb: rb.__setitem__(0, None),
        lambda rb: rb.update_({}),
        lambda rb: rb.query(),
    ],
)
def test_calls_without_a_meaning_are_refused_with_what_to_do(call):
    ours = SQLReplayBuffer("sqlite://")
    ours.extend(Envs("flat").steps(4))
    with pytest.raises(BufferConfigError, match=r"SQLReplayBuffer has no .*: "):
        call(ours)
    assert len(ours) == 4


def test_priorities_are_refused_where_there_are_none():
    ours = SQLReplayBuffer("sqlite://", batch_size=2)
    ours.extend(Envs("flat").steps(4))
    ours.update_tensordict_priority(ours.sample())  # as a buffer of TorchRL
    with pytest.raises(FieldError, match="has no priorities; open it with alpha"):
        ours.update_priority([1], [2.0])
    without_beta = SQLReplayBuffer("sqlite://", alpha=0.5)
    without_beta.extend(Envs("flat").steps(4))
    with pytest.raises(BufferConfigError, match="draws by priority need beta="):
        without_beta.sample(2)
    with_priorities = SQLReplayBuffer("sqlite://", alpha=0.5, beta=0.5, batch_size=2)
    with_priorities.extend(Envs("flat").steps(4))
    drawn = with_priorities.sample()
    with pytest.raises(FieldError, match="'td_error' is missing"):
        with_priorities.update_tensordict_priority(drawn)
    drawn["td_error"] = torch.tensor([1.0, torch.nan])
    with pytest.raises(FieldError):
        with_priorities.update_tensordict_priority(drawn)


def test_wrong_indices_and_priorities_say_what_is_expected(schema_url):
    ours = SQLReplayBuffer(schema_url, batch_size=4, alpha=0.6, beta=0.4)
    numbers = ours.extend(Envs("flat").steps(6))
    with pytest.raises(FieldError, match="priority: expected 6 numbers, one for each index"):
        ours.update_priority(numbers, torch.rand(5))
    ours.update_priority(numbers, 0.5)
    with pytest.raises(InsufficientDataError, match="and no position"):
        assert ours[0]


def test_rewards_of_agents_are_not_added_up_over_several_steps(schema_url):
    ours = SQLReplayBuffer(schema_url, batch_size=4, n_steps=3, gamma=1.0)
    steps = Envs("flat").steps(6)
    steps["next", "agents", "reward"] = torch.ones(6, 2, 1)
    ours.extend(steps)
    with pytest.raises(FieldError, match=r"have \('next', 'agents', 'reward'\) too"):
        ours.sample()


def test_episodes_go_on_after_a_part_of_them_was_evicted(schema_url):
    ours = SQLReplayBuffer(schema_url, max_capacity=20)
    envs = Envs("flat", 2, seed=5)
    for _ in range(20):
        ours.extend(envs.steps(8))
    assert len(ours) == 20
    assert ours.write_count == 320
    drawn = ours.sample(64)
    assert set(drawn["index"].tolist()) <= set(range(301, 321))
    assert ours.stats()["utilization"] == 1.0


def test_runs_end_where_an_environment_was_reset(schema_url):
    ours = SQLReplayBuffer(schema_url)
    for seed in range(3):  # each begins again at observation 0
        envs = Envs("flat", seed=1, with_ids=False)
        ours.extend(envs.steps(4).exclude("collector"))
        assert seed >= 0
    ours.close()
    lengths = run(schema_url, "SELECT status, sum(length) FROM v_episodes GROUP BY status")
    assert lengths == [("complete", 12)]
    assert run(schema_url, "SELECT count(*) FROM v_episodes")[0][0] >= 3


def test_keys_of_episodes_are_those_of_the_arguments(schema_url):
    ours = SQLReplayBuffer(
        schema_url, task_id="cartpole", agent_id="a1", session_id="s1", model_version=3
    )
    ours.extend(Envs("flat").steps(2))
    ours.model_version = 4
    ours.extend(Envs("flat").steps(2))
    sql = (
        "SELECT DISTINCT task_id, agent_id, session_id, model_version FROM v_experiences ORDER BY 4"
    )
    assert run(schema_url, sql) == [("cartpole", "a1", "s1", 3), ("cartpole", "a1", "s1", 4)]


def test_it_goes_to_another_process(schema_url):
    ours = SQLReplayBuffer(
        schema_url, batch_size=4, transform=RewardScaling(0.0, 2.0, in_keys=[("next", "reward")])
    )
    empty = pickle.loads(pickle.dumps(ours))  # before there is a buffer
    empty.extend(Envs("flat").steps(5))
    ours.extend(Envs("flat").steps(5))
    again = pickle.loads(pickle.dumps(ours))
    assert len(again) == len(empty) == len(ours) == 10
    assert len(again.transform) == 1
    assert again.sample().batch_size == (4,)
    assert b"secret" not in pickle.dumps(ours)
    with pytest.raises(BufferConfigError, match="in memory cannot go to another process"):
        pickle.dumps(SQLReplayBuffer("sqlite://"))


def test_a_state_is_the_address_without_steps(schema_url, tmp_path):
    ours = SQLReplayBuffer(schema_url, batch_size=4, alpha=0.5, beta=0.5)
    ours.extend(Envs("flat").steps(50))
    ours.sample()
    ours.dumps(tmp_path / "state")
    again = SQLReplayBuffer(schema_url, batch_size=8, alpha=0.5, beta=0.5)
    again.loads(tmp_path / "state")
    assert (len(again), again.batch_size) == (50, 4)
    other = SQLReplayBuffer(schema_url, "other")
    with pytest.raises(BufferConfigError, match="the state is of buffer 'default'"):
        other.loads(tmp_path / "state")


WAYS_TO_DRAW = {
    "uniform": {},
    "by priority": {"alpha": 0.7, "beta": 0.5},
    "n-step": {"n_steps": 3, "gamma": 0.9},
    "slices": {"slice_len": 2},
    "annealed": {
        "alpha": 0.7,
        "sampler": lambda: PrioritizedSampler(beta=0.1, beta_anneal_steps=9, seed=4),
    },
}


@pytest.mark.parametrize("mirror", [True, False])
@pytest.mark.parametrize("way", WAYS_TO_DRAW)
def test_draws_after_loading_are_those_of_a_buffer_that_went_on(schema_url, way, mirror, tmp_path):
    def opened(**more):
        options = {"batch_size": 8, "mirror": mirror, **WAYS_TO_DRAW[way], **more}
        if "sampler" in options:
            options["sampler"] = options["sampler"]()
        return SQLReplayBuffer(schema_url, **options)

    def drawn(buffer, n):
        batches = [buffer.sample() for _ in range(n)]
        return [
            (b["index"].tolist(), b.get("priority_weight", b["index"]).tolist()) for b in batches
        ]

    saved = opened()
    index = saved.extend(Envs("flat", 2).steps(40))
    if "alpha" in WAYS_TO_DRAW[way]:
        saved.update_priority(index, torch.rand(80))
    drawn(saved, 3)
    saved.dumps(tmp_path / "state")
    state, expected = saved.state_dict(), drawn(saved, 4)
    assert drawn(saved, 4) != expected
    again = opened()
    again.loads(tmp_path / "state")  # before the first draw
    assert again.state_dict()["_position"] == state["_position"]
    assert drawn(again, 4) == expected
    running = opened()
    drawn(running, 5)
    running.load_state_dict(state)
    assert drawn(running, 4) == expected
    saved.load_state_dict(state)
    assert drawn(saved, 4) == expected
    ahead = opened(prefetch=3)
    drawn(ahead, 2)
    ahead.load_state_dict(state)
    assert drawn(ahead, 2) == expected[:2]
    between = ahead.state_dict()
    again.load_state_dict(between)
    assert drawn(again, 2) == expected[2:]


def test_a_state_of_other_draws_is_refused(schema_url):
    ours = SQLReplayBuffer(schema_url, batch_size=4)
    ours.extend(Envs("flat").steps(30))
    ours.sample()
    other = SQLReplayBuffer(schema_url, batch_size=4, n_steps=3, gamma=0.9)
    with pytest.raises(ArgumentError, match="mode='step', and here it is 'n_step'"):
        other.load_state_dict(ours.state_dict())
    assert other.sample().batch_size == (4,)


def test_a_state_has_the_generator_of_the_buffer(schema_url):
    ours = SQLReplayBuffer(schema_url, generator=torch.Generator().manual_seed(3))
    ours.extend(Envs("flat").steps(50))
    sizes = (4, 8, 4)  # draws of another size begin with another seed
    state = ours.state_dict()
    expected = [ours.sample(n)["index"].tolist() for n in sizes]
    again = SQLReplayBuffer(schema_url)
    again.load_state_dict(state)
    assert [again.sample(n)["index"].tolist() for n in sizes] == expected
    middle = ours.state_dict()
    expected = [ours.sample(n)["index"].tolist() for n in sizes]
    again.load_state_dict(middle)
    assert [again.sample(n)["index"].tolist() for n in sizes] == expected


def test_a_closed_buffer_stores_but_gives_no_draws_until_it_is_opened_again(schema_url):
    ours = SQLReplayBuffer(schema_url, batch_size=4)
    envs = Envs("flat")
    ours.extend(envs.steps(10))
    ours.sample()
    ours.close()
    ours.extend(envs.steps(10))
    more = envs.steps(10)
    more["loc"] = torch.rand(10)
    ours.extend(more)  # opens the underlying buffer again, for the entry
    assert len(ours) == ours.buffer.stats().inserted == 30
    for draw in (ours.sample, lambda: ours[:], lambda: ours.buffer.sample_arrays(4)):
        with pytest.raises(BufferConfigError, match=r"buffer 'default' is closed.*open it again"):
            draw()
    ours.close()
    assert pickle.loads(pickle.dumps(ours)).sample().batch_size == (4,)
    with SQLReplayBuffer(schema_url, batch_size=30) as again:
        assert again.sample()["loc"].shape == (30,)
    never = SQLReplayBuffer(schema_url, "never")
    never.close()
    with pytest.raises(BufferConfigError, match="is closed"):
        never.sample(2)
    never.extend(envs.steps(2))
    with pytest.raises(BufferConfigError, match="is closed"):
        never.buffer.sample_arrays(2)


def test_a_batch_may_lack_errors_that_came_later(schema_url):
    ours = SQLReplayBuffer(schema_url, alpha=1.0, beta=0.5, batch_size=4)
    envs = Envs("flat")
    ours.extend(envs.steps(5))
    second = envs.steps(5)
    second["td_error"] = torch.full((5,), 3.0)
    ours.extend(second)
    ours.extend(envs.steps(5))  # the largest priority so far
    priorities = ours.buffer.sample_arrays(200, sampler=PrioritizedSampler(seed=0))
    of = dict(zip(priorities.seq.tolist(), priorities.priorities.tolist(), strict=True))
    assert [round(of[seq], 3) for seq in range(1, 16)] == [1.0] * 5 + [3.0] * 10


def test_the_generator_of_torch_repeats_draws(schema_url):
    ours = SQLReplayBuffer(schema_url, batch_size=16)
    ours.extend(Envs("flat").steps(50))
    ours.close()

    def drawn(**options):
        with SQLReplayBuffer(schema_url, batch_size=16, **options) as buffer:
            return [buffer.sample()["index"].tolist() for _ in range(3)]

    torch.manual_seed(7)
    first = drawn()
    assert drawn() != first
    torch.manual_seed(7)
    assert drawn() == first
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert drawn(generator=generators[0]) == drawn(generator=generators[1])


def test_threads_draw_ahead(schema_url):
    ours = SQLReplayBuffer(schema_url, batch_size=16, prefetch=3)
    ours.extend(Envs("flat").steps(50))
    numbers = {seq for _ in range(40) for seq in ours.sample()["index"].tolist()}
    assert len(numbers) == 50
    ours.close()
    with pytest.raises(BufferConfigError, match="is closed"):  # what was drawn ahead too
        ours.sample()
    ours.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        ours.sample()


def test_a_sampler_of_sqlbuffer_chooses_the_steps(schema_url):
    ours = SQLReplayBuffer(schema_url, sampler=LatestSampler())
    ours.extend(Envs("flat").steps(50))
    assert sorted(ours.sample(5)["index"].tolist()) == [46, 47, 48, 49, 50]


def test_steps_are_read_by_their_numbers(schema_url):
    ours = SQLReplayBuffer(schema_url)
    data = Envs("pixels").steps(6)
    seqs = ours.extend(data)
    plain = data.exclude("index")
    assert_equal(ours[seqs], plain)
    assert_equal(ours[seqs[[4, 1, 1]]], plain[[4, 1, 1]])
    assert_equal(ours[int(seqs[3])], plain[3])
    assert torch.equal(ours["next", "pixels"], plain["next", "pixels"])
    assert ours.read_all_in_order(2).batch_size == (2,)
    with pytest.raises(InsufficientDataError):
        assert ours[torch.tensor([1, 99])]
    with pytest.raises(ArgumentError, match="numbers and no positions"):
        assert ours[:3]


def test_the_fields_are_those_of_sqlbuffer(schema_url):
    ours = SQLReplayBuffer(schema_url, "typed")
    ours.extend(Envs("nested", 2).steps(30))
    ours.close()
    plain = sqlbuffer.ReplayBuffer(schema_url, "typed")
    assert {"observation_position", "next_observation_position", "action"} <= set(plain.fields)
    batch = plain.sample_transitions(16, n_step=2, fields=["observation_position"])
    assert batch.next_observation_position.shape == (16, 4)


def test_open_episodes_end_with_the_process(schema_url):
    if not schema_url.startswith("sqlite"):
        pytest.skip("allowed: the end of a process does not depend on the database")
    code = (
        "from tests.peers.torchrl.steps import Envs\n"
        "from sqlbuffer.integrations.torchrl import SQLReplayBuffer\n"
        f"buffer = SQLReplayBuffer({schema_url!r})\n"
        "buffer.extend(Envs('flat', 2).steps(3))"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    assert {s for (s,) in run(schema_url, "SELECT status FROM v_episodes")} == {"complete"}


def test_a_missing_torchrl_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrl.data", None)
    monkeypatch.delitem(sys.modules, "sqlbuffer.integrations.torchrl")
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[torchrl\]'"):
        importlib.import_module("sqlbuffer.integrations.torchrl")
