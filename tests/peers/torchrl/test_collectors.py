"""Collectors, losses and trainers of TorchRL use the buffer as their own."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import AsyncBatchedCollector, Collector, MultiCollector
from torchrl.data import LazyTensorStorage, OneHot, TensorDictReplayBuffer
from torchrl.data.postprocs import MultiStep
from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import EGreedyModule, QValueModule
from torchrl.objectives import DQNLoss, SoftUpdate
from torchrl.trainers import ReplayBufferTrainer

from sqlbuffer.integrations.torchrl import SQLReplayBuffer
from tests.peers.torchrl.steps import assert_equal
from tests.support.sql import run

EPISODES = "SELECT status, count(*), sum(length) FROM v_episodes GROUP BY status ORDER BY status"


def make_env():
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=30))


def network():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    values = TensorDictModule(layers, in_keys=["observation"], out_keys=["action_value"])
    return TensorDictSequential(values, QValueModule(spec=OneHot(2)))


def explorer(policy):
    greedy = EGreedyModule(OneHot(2), eps_init=0.5, eps_end=0.5)
    return TensorDictSequential(policy, greedy)


@pytest.mark.parametrize("by_step", [False, True])
def test_a_collector_extends_it_with_one_episode_for_each_trajectory(schema_url, by_step):
    ours, batches = SQLReplayBuffer(schema_url), []
    envs = SerialEnv(3, make_env)
    collector = Collector(
        envs, explorer(network()), frames_per_batch=90, total_frames=360, replay_buffer=ours,
        extend_buffer=not by_step, init_random_frames=90,
    )  # fmt: skip
    for nothing in collector:
        batches.append(nothing)
        assert len(ours) == 90 * len(batches)
    collector.shutdown()
    assert ours.write_count == 360
    stored = ours[:]
    ids = stored["collector", "traj_ids"].reshape(-1)
    n_done = int(stored["next", "done"].sum())
    n_of = {status: n for status, n, _ in run(schema_url, EPISODES)}
    assert n_of["complete"] == n_done
    assert n_of.get("open", 0) == len(ids.unique()) - n_done
    ours.close()
    ((_, n, total),) = run(schema_url, EPISODES)
    assert (n, total) == (len(ids.unique()), 360)
    lengths = run(schema_url, "SELECT length FROM v_episodes ORDER BY 1")
    assert [n for (n,) in lengths] == sorted(ids.unique(return_counts=True)[1].tolist())


def test_steps_of_a_collector_equal_those_that_it_gives_without_a_buffer(schema_url):
    collector = Collector(make_env(), explorer(network()), frames_per_batch=50, total_frames=200)
    ours = SQLReplayBuffer(schema_url)
    theirs = TensorDictReplayBuffer(storage=LazyTensorStorage(200))
    for data in collector:
        ours.extend(data.clone())
        theirs.extend(data.clone())
    collector.shutdown()
    assert_equal(ours[:], theirs[:].exclude("index"))


def losses_of(url, batches):
    """Return the losses of updates with the given batches, and the parameters at the end."""
    policy = network()
    loss = DQNLoss(policy, action_space="one-hot", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss, tau=0.1)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
    losses = []
    for batch in batches:
        value = loss(batch)["loss"]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        updater.step()
        losses.append(value.item())
    return losses, [p.detach().clone() for p in policy.parameters()]


def test_updates_of_dqn_equal_those_with_their_buffer(schema_url):
    torch.manual_seed(0)
    ours = SQLReplayBuffer(schema_url, batch_size=32)
    collector = Collector(
        make_env(), explorer(network()), frames_per_batch=100, total_frames=400, replay_buffer=ours
    )
    for _ in collector:
        pass
    collector.shutdown()
    theirs = TensorDictReplayBuffer(storage=LazyTensorStorage(400))
    numbers = [seq for (seq,) in run(schema_url, "SELECT seq FROM v_experiences ORDER BY seq")]
    places = {seq: i for i, seq in enumerate(numbers)}
    theirs.extend(ours[:])
    drawn = [ours.sample() for _ in range(20)]
    same = [
        theirs[torch.tensor([places[seq] for seq in batch["index"].tolist()])] for batch in drawn
    ]
    losses, parameters = losses_of(schema_url, drawn)
    their_losses, their_parameters = losses_of(schema_url, same)
    assert losses == their_losses
    assert all(map(torch.equal, parameters, their_parameters))
    assert losses[0] != losses[-1]


def test_the_loss_of_several_steps_sees_the_end_of_an_episode(schema_url):
    ours = SQLReplayBuffer(schema_url, n_steps=3, gamma=0.5)
    flags = torch.tensor([[False], [False], [False], [True]])
    observed = torch.arange(5.0).reshape(5, 1).expand(5, 4)
    step = {"reward": torch.ones(4, 1), "done": flags, "terminated": flags}
    data = {
        "observation": observed[:4], "action": torch.eye(2, dtype=torch.int64)[[0, 1, 0, 1]],
        "next": {"observation": observed[1:], **step},
    }  # fmt: skip
    ours.extend(TensorDict(data, [4]))
    loss = DQNLoss(network(), action_space="one-hot", delay_value=True)
    loss.make_value_estimator(gamma=0.5)
    drawn = ours.sample(64)
    target = loss.value_estimator.value_estimate(
        drawn, target_params=loss.target_value_network_params
    )
    expected = {0: None, 1: 1.75, 2: 1.5, 3: 1.0}
    for t, value in zip(drawn["observation"][:, 0].tolist(), target[:, 0].tolist(), strict=True):
        if expected[int(t)] is not None:
            assert value == pytest.approx(expected[int(t)])


def test_a_trainer_hook_extends_and_draws(schema_url):
    ours = SQLReplayBuffer(schema_url, batch_size=16, alpha=0.6, beta=0.4)
    hook = ReplayBufferTrainer(ours, batch_size=16, flatten_tensordicts=True)
    hook.extend(make_env().rollout(40, break_when_any_done=False))
    drawn = hook.sample(None)
    assert drawn.batch_size == (16,)
    drawn["td_error"] = torch.rand(16, 1)
    hook.update_priority(drawn)
    hook.load_state_dict(hook.state_dict())
    assert len(ours) == 40


def test_collectors_in_other_processes_share_it(schema_url):
    ours = SQLReplayBuffer(schema_url, batch_size=32)
    collector = MultiCollector(
        [make_env, make_env], explorer(network()), sync=True, frames_per_batch=80,
        total_frames=240, replay_buffer=ours,
    )  # fmt: skip
    for _ in collector:
        assert len(ours) >= 80
    collector.shutdown()
    assert len(ours) == ours.write_count == 240
    assert ours.sample()["observation"].shape == (32, 4)
    ids = ours[:]["collector", "traj_ids"].unique()
    assert sum(n for _, n, _ in run(schema_url, EPISODES)) == len(ids)


def test_environments_that_come_in_any_order_have_episodes_of_their_own(schema_url):
    ours = SQLReplayBuffer(schema_url)
    collector = AsyncBatchedCollector(
        create_env_fn=[make_env] * 3, policy=explorer(network()), frames_per_batch=40,
        total_frames=240, replay_buffer=ours, env_backend="threading",
    )  # fmt: skip
    for _ in collector:
        pass
    collector.shutdown()
    stored = ours[:]
    ours.close()
    n_done = int(stored["next", "done"].sum())
    ((status, n, total),) = run(schema_url, EPISODES)
    assert (status, total) == ("complete", 240)
    assert n_done <= n <= n_done + 3
    assert set(stored["env_index"].tolist()) == {0, 1, 2}


def test_two_collectors_of_one_process_do_not_continue_each_other(schema_url):
    ours = SQLReplayBuffer(schema_url)
    for _ in range(2):
        collector = Collector(
            make_env(), None, frames_per_batch=5, total_frames=5, replay_buffer=ours
        )
        for _ in collector:
            pass
        collector.shutdown()
    ours.close()
    assert run(schema_url, EPISODES) == [("complete", 2, 10)]


def test_batches_of_their_multistep_are_stored_as_they_are(schema_url):
    ours = SQLReplayBuffer(schema_url)
    collector = Collector(
        make_env(), None, frames_per_batch=40, total_frames=40, replay_buffer=ours,
        postproc=MultiStep(gamma=0.9, n_steps=3),
    )  # fmt: skip
    for _ in collector:
        pass
    collector.shutdown()
    assert {"gamma", "nonterminal", "steps_to_next_obs"} <= set(ours.sample(8).keys())
