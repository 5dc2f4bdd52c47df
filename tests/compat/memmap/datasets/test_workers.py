"""Loaders in other processes, and readers beside a writer."""

import pickle
import threading
from contextlib import closing

import pytest

torch = pytest.importorskip("torch")

from sqlbuffer.compat.memmap import ReplayBuffer  # noqa: E402
from tests.compat.memmap.datasets.loaded import SHAPE, fill, step  # noqa: E402
from tests.conftest import close_pool  # noqa: E402
from tests.support.proxy import Proxy, losing_each_message  # noqa: E402


@pytest.mark.thorough
def test_forked_workers_read_by_themselves(buffer_url):
    buffer = fill(ReplayBuffer(buffer_url, **SHAPE))
    with buffer.one_episode(task=5):
        buffer.store(**step(9))
        buffer.store(**step(10))
        loader = buffer.dataloader(
            4,
            timestep_level=True,
            to_named_tuple=("r", "task", "_indices"),
            return_indices=True,
            num_workers=2,
            multiprocessing_context="fork",
        )
        batches = list(loader)
        assert torch.cat([batch.r for batch in batches]).tolist() == list(range(11))
        assert torch.cat([batch.task for batch in batches]).tolist()[-3:] == [0, 5, 5]
        buffer.store(**step(11))
    assert buffer.episode_lens[3] == 3, "the parent goes on with its episode"
    assert buffer.dataset()[3]["r"].tolist() == [9.0, 10.0, 11.0]
    buffer.close()


def test_a_copy_of_a_dataset_reads_what_its_buffer_has_open(buffer_url):
    buffer = ReplayBuffer(buffer_url, **SHAPE)
    with buffer.one_episode():
        buffer.store(**step(0))
        buffer.store(**step(1))
        copy = pickle.loads(pickle.dumps(buffer.dataset(n_steps=1)))
        assert copy[0]["next_r"] == 1.0
        assert len(pickle.dumps(copy)) < 5_000
    assert copy[0]["next_r"] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        copy.replay_buffer.store(r=1.0)
    copy.replay_buffer.close()
    buffer.close()


def test_a_reader_sees_what_a_writer_has_finished(buffer_url):
    writer = fill(ReplayBuffer(buffer_url, **SHAPE), (2,))
    reader = ReplayBuffer.from_folder(buffer_url, read_only=True)
    dataset = reader.dataset(timestep_level=True)
    fill(writer, (3,), first=10)
    assert len(dataset) == 2
    assert len(reader.dataset(timestep_level=True)) == 5
    with writer.one_episode():
        writer.store(**step(20))
        writer.flush()
        assert len(reader) == 2, "an open episode is its writer's"
        assert len(writer) == 3
    assert reader.dataset()[2]["r"].tolist() == [20.0]
    for buffer in (reader, writer):
        buffer.close()


@pytest.mark.thorough
@pytest.mark.slow
def test_items_are_whole_while_another_thread_overwrites_their_slots(buffer_url):
    """Episode n has length 1 + n % 6 and reward n throughout."""
    writer = ReplayBuffer(buffer_url, **{**SHAPE, "max_episodes": 2}, circular=True)
    reader = ReplayBuffer.from_folder(buffer_url, read_only=True)
    n_read, stop = 0, threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            length = 1 + number % 6
            writer.store_episode(r=[float(number)] * length, task=number)
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        while n_read < 60:
            if not len(reader):
                continue
            for batch in reader.dataloader(2, return_mask=True):
                for i, length in enumerate(batch["_lens"].tolist()):
                    (number,) = set(batch["r"][i, :length].tolist())
                    assert (batch["task"][i].item(), length) == (number, 1 + number % 6)
                    n_read += 1
    finally:
        stop.set()
        thread.join()
    assert n_read >= 60
    for buffer in (reader, writer):
        buffer.close()


def test_training_within_the_open_episode(buffer_url):
    """As a PPO does: returns of the open episode are written back, then steps are drawn."""
    fields = {"state": ("float", 2), "reward": "float", "returns": "float", "learnable": "bool"}
    buffer = ReplayBuffer(buffer_url, 4, 8, fields)
    with buffer.one_episode():
        for t in range(5):
            stored = buffer.store(state=[t, t], reward=1.0, returns=0.0, learnable=True)
        # The episode is cut: one more row carries the value to begin with, and is not learned from.
        cut = stored._replace(learnable=False, reward=10.0)
        buffer.store(**cut._asdict())
        for batch in buffer.dataloader(2, return_indices=True):
            rewards, lens = batch["reward"].numpy(), batch["_lens"]
            sums = rewards[:, ::-1].cumsum(1)[:, ::-1]
            buffer.data["returns"][batch["_index"].numpy(), : lens.max()] = sums
        loader = buffer.dataloader(
            5,
            timestep_level=True,
            filter_fields={"learnable": True},
            to_named_tuple=("state", "returns"),
        )
        (batch,) = loader
        assert batch.returns.tolist() == [15, 14, 13, 12, 11]
        assert batch.state[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert buffer.get_all_data(("returns",))["returns"].tolist() == [[15, 14, 13, 12, 11, 10]]
    buffer.close()


@pytest.mark.thorough
def test_readers_go_on_over_lost_connections(make_database_url):
    with closing(Proxy(make_database_url("postgresql", schema=True))) as proxy:
        buffer = fill(ReplayBuffer(proxy.url, **SHAPE))
        reads = [
            lambda: buffer.num_episodes,
            lambda: buffer.data["r"][0, :3].tolist(),
            lambda: [batch["r"].tolist() for batch in buffer.dataloader(4, timestep_level=True)],
        ]
        for read in reads:
            expected = read()
            assert all(found == expected for found in losing_each_message(proxy, read))
        buffer.close()
        close_pool(proxy.url)
