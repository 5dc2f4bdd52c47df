"""The blocks of memmap-replay-buffer's README run with only their import changed."""

# ruff: noqa: C408  (they are that README's, word for word)

import pytest

torch = pytest.importorskip("torch")

from sqlbuffer.compat.memmap import ReplayBuffer  # noqa: E402


@pytest.fixture
def buffer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the README writes to ./replay_data
    # initialize buffer
    buffer = ReplayBuffer(
        "./replay_data",
        max_episodes=1000,
        max_timesteps=500,
        fields=dict(
            state=("float", (3, 16, 16), 0.0),  # type, shape, and optional default value
            action=("int", 2),
            reward="float",  # default shape is ()
        ),
        meta_fields=dict(task_id="int"),
        circular=True,
        overwrite=True,
    )
    # store 4 episodes
    for _ in range(4):
        with buffer.one_episode(task_id=1):
            for _ in range(100):
                buffer.store(
                    state=torch.randn(3, 16, 16),
                    action=torch.randint(0, 4, (2,)).numpy(),
                    reward=1.0,
                )
    yield buffer
    buffer.close()


def test_rehydrating_from_the_disk(buffer):
    # rehydrate from disk
    buffer_rehydrated = ReplayBuffer.from_folder("./replay_data")
    assert buffer_rehydrated.num_episodes == 4
    buffer_rehydrated.close()


def test_trajectories(buffer):
    dataloader = buffer.dataloader(
        batch_size=2,
        return_mask=True,
        to_named_tuple=("state", "action", "reward", "task_id", "_mask", "_lens"),
    )
    n = 0
    for state, action, reward, task_id, mask, lens in dataloader:
        assert state.shape == (2, 100, 3, 16, 16)
        assert action.shape == (2, 100, 2)
        assert reward.shape == (2, 100)
        assert task_id.shape == (2,)
        assert lens.shape == (2,)
        assert mask.shape == (2, 100)
        n += 1
    assert n == 2


@pytest.mark.thorough
def test_single_steps(buffer):
    dataloader = buffer.dataloader(
        batch_size=8,
        filter_meta=dict(task_id=1),
        to_named_tuple=("state", "action", "task_id"),
        timestep_level=True,
        drop_last=True,
    )
    n = 0
    for state, action, task_id in dataloader:
        assert state.shape == (8, 3, 16, 16)
        assert action.shape == (8, 2)
        assert task_id.shape == (8,)
        n += 1
    assert n == 50


@pytest.mark.thorough
def test_n_step_transitions(buffer):
    dataloader = buffer.dataloader(
        batch_size=4,
        n_steps=5,
        current_fields=("state",),
        next_fields=("state",),
        sequence_fields=("action", "reward"),
        to_named_tuple=("state", "next_state", "action_chunk", "rewards", "n_step_lens"),
        fieldname_map={"seq_action": "action_chunk", "seq_reward": "rewards"},
    )
    n = 0
    for state, next_state, action_chunk, rewards, n_step_lens in dataloader:
        assert state.shape == (4, 3, 16, 16)
        assert next_state.shape == (4, 3, 16, 16)
        assert action_chunk.shape == (4, 5, 2)
        assert rewards.shape == (4, 5)
        assert n_step_lens.shape == (4,)
        n += 1
    assert n == 99
