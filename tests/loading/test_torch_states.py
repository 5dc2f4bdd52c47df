"""Worker processes that continue from the states of torchdata's `StatefulDataLoader`."""

import json
import pickle

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer

pytest.importorskip("torch")
stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")

from torch.utils.data import DataLoader  # noqa: E402

from sqlbuffer.torch import IterableDataset  # noqa: E402

# torchdata 0.11 with a newer torch.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


@pytest.fixture
def buffer(schema_url):
    with ReplayBuffer(schema_url, fields={"x": "int64"}) as buffer:
        buffer.extend({"x": range(100)})
        yield buffer


def stateful(loader, n_workers=2, **options):
    return stateful_dataloader.StatefulDataLoader(
        IterableDataset(loader), batch_size=None, num_workers=n_workers, **options
    )


def xs(batches):
    return [batch["x"].tolist() for batch in batches]


def begun(data, n):
    batches = iter(data)
    seen = xs(next(batches) for _ in range(n))
    state = data.state_dict()
    rest = xs(batches)
    return seen, rest, json.loads(json.dumps(state, default=str))


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("n_workers", [0, 1, 2])
@pytest.mark.parametrize("n_before", [1, 3, 9])
def test_a_pass_continues_exactly(buffer, n_workers, n_before):
    def data():
        return stateful(buffer.loader("step", 8, epochs=1, seed=3), n_workers)

    seen, rest, _ = begun(data(), n_before)
    assert sorted(x for batch in seen + rest for x in batch) == list(range(100))
    first = data()
    batches = iter(first)
    assert xs(next(batches) for _ in range(n_before)) == seen
    state = first.state_dict()
    del batches
    buffer.extend({"x": range(100, 130)})  # belongs to the next pass, also of idle workers
    again = data()
    again.load_state_dict(state)
    assert xs(again) == rest


def check_draws(buffer, method):
    """Check that draws go on where a state was taken, with batches fetched ahead."""

    def data():
        loader = buffer.loader("step", 8, seed=3, prefetch=2)
        return stateful(loader, multiprocessing_context=method)

    first = data()
    batches = iter(first)
    xs(next(batches) for _ in range(3))
    state = first.state_dict()
    expected = xs(next(batches) for _ in range(4))
    del batches
    again = data()
    again.load_state_dict(state)
    batches = iter(again)
    assert xs(next(batches) for _ in range(4)) == expected
    del batches


@pytest.mark.thorough
def test_draws_without_end_continue_exactly(buffer):
    check_draws(buffer, "fork")


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
def test_the_iteration_after_a_resumed_one_is_a_new_one(buffer, persistent):
    def data():
        loader = buffer.loader("step", 8, epochs=1, seed=3)
        return stateful(loader, persistent_workers=persistent)

    first = data()
    passes = [xs(first) for _ in range(3)]
    again = data()
    xs(again)
    batches = iter(again)
    next(batches)
    state = again.state_dict()
    del batches, again
    resumed = data()
    resumed.load_state_dict(state)
    assert xs(resumed) == passes[1][1:]
    assert xs(resumed) == passes[2]


@pytest.mark.thorough
def test_ranks_with_workers_continue_exactly(buffer):
    def data(rank):
        loader = buffer.loader("step", 8, epochs=1, shard=(rank, 2), even=True)
        return stateful(loader)

    ranks = [data(rank) for rank in range(2)]
    running = [iter(rank) for rank in ranks]
    seen = [xs(next(batches) for _ in range(3)) for batches in running]
    states = [rank.state_dict() for rank in ranks]
    expected = [xs(batches) for batches in running]
    assert len(seen[0] + expected[0]) == len(seen[1] + expected[1])
    everything = [x for part in seen + expected for batch in part for x in batch]
    assert sorted(everything) == list(range(100))
    buffer.extend({"x": range(100, 130)})
    again = [data(rank) for rank in range(2)]
    for rank, state in zip(again, states, strict=True):
        rank.load_state_dict(state)
    assert [xs(rank) for rank in again] == expected


@pytest.mark.thorough
def test_ranks_with_different_numbers_of_workers_are_refused(buffer):
    def data(rank, n_workers):
        loader = buffer.loader("step", 8, epochs=1, shard=(rank, 2))
        return DataLoader(IterableDataset(loader), batch_size=None, num_workers=n_workers)

    xs(data(0, 2))
    with pytest.raises(ValueError, match="num_workers=1, and another rank with 2"):
        xs(data(1, 1))


@pytest.mark.thorough
def test_a_state_of_other_workers_is_refused(buffer):
    loader = buffer.loader("step", 8, epochs=1)
    data = stateful(loader)
    next(iter(data))
    state = data.state_dict()
    own = next(iter(state["_snapshot"]["_worker_snapshots"].values()))["dataset_state"]
    with pytest.raises(ValueError, match="of a worker process, and there are none here"):
        IterableDataset(loader).load_state_dict(own)
    with pytest.raises(ValueError, match=r"the result of state_dict\(\)"):
        IterableDataset(loader).load_state_dict({"seed": 3})


def test_batches_fetched_ahead_are_not_copied(buffer):
    loader = buffer.loader("step", 8, epochs=1, prefetch=4)
    batches = iter(loader)
    next(batches)
    assert len(pickle.dumps(IterableDataset(loader))) < 20_000
    copied = pickle.loads(pickle.dumps(loader))
    assert np.concatenate([batch.x for batch in copied]).size == 100
    assert sum(batch.n_rows for batch in batches) == 92
