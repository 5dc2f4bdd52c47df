"""Datasets under torch's own DataLoader, with worker processes."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from sqlbuffer import QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.errors import FieldError, InsufficientDataError
from sqlbuffer.loading.plans import Intervals, Order
from sqlbuffer.loading.ranks import Meeting
from sqlbuffer.torch import Dataset, IterableDataset
from tests.loading.rows import FIELDS, delete_steps, fill
from tests.support.processes import run_at_once
from tests.support.sql import scalar
from tests.support.statements import selects

WORKERS = [(0, None), (2, "fork")]  # and "spawn" among the integrations


def data_loader(dataset, n_workers=2, method="fork", **options):
    """Return a DataLoader of whole batches."""
    if n_workers:
        options = {"multiprocessing_context": method, "timeout": 60, **options}
    return DataLoader(dataset, batch_size=None, num_workers=n_workers, **options)


def actions(batches):
    return [batch["action"].tolist() for batch in batches]


def flat(batches):
    return [action for batch in actions(batches) for action in batch]


def take(iterable, n):
    """Return the next n items of a new iteration, which ends then."""
    items = iter(iterable)
    return [next(items) for _ in range(n)]


def check_pass(buffer, n_workers, method):
    """Check that workers cover a pass once between them."""
    fill(buffer, 103)
    delete_steps(buffer, range(40, 60))
    dataset = IterableDataset(buffer.loader("step", 8, epochs=1, seed=1))
    loader = data_loader(dataset, n_workers, method)
    expected = [*range(40), *range(60, 103)]
    batches = list(loader)
    assert sorted(flat(batches)) == expected
    assert flat(batches) != expected
    assert all(isinstance(batch["obs"], torch.Tensor) for batch in batches)
    assert [batch["info"]["step"].tolist() for batch in batches] == actions(batches)
    assert batches[0]["info"]["task_id"].tolist() == ["t"] * 8
    # Each worker has a smaller batch at its end.
    assert sum(len(batch) < 8 for batch in actions(batches)) <= max(n_workers, 1)
    if method != "spawn":  # which starts slowly
        second = flat(loader)
        assert sorted(second) == expected
        assert second != flat(batches)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("n_workers", "method"), WORKERS)
def test_workers_cover_a_pass_once_between_them(buffer, n_workers, method):
    check_pass(buffer, n_workers, method)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("options", [{"epochs": 1}, {"epochs": 2, "prefetch": 2}])
def test_persistent_workers_begin_another_epoch_with_what_is_there_then(buffer, options):
    fill(buffer, 30)
    dataset = IterableDataset(buffer.loader("step", 4, seed=1, **options))
    loader = data_loader(dataset, persistent_workers=True)
    found = [flat(loader)]
    fill(buffer, 10, first=30)
    found += [flat(loader), flat(loader)]
    n = options["epochs"]
    assert [sorted(one) for one in found] == [
        sorted([*range(size)] * n) for size in (30, 40, 40)
    ]  # fmt: skip
    assert found[1] != found[2]


def begin(dataset, worker):
    """Return the iterator that one of two workers would have."""
    info = type("Info", (), {"id": worker, "num_workers": 2, "seed": 100 + worker})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.data, "get_worker_info", lambda: info)
        return iter(dataset)


def test_all_workers_have_the_range_of_the_first_of_them(buffer):
    """Rows are stored between the beginnings of two workers."""
    fill(buffer, 20)
    dataset = IterableDataset(buffer.loader("step", 4, epochs=1, seed=1))
    first, second = begin(dataset, 0), begin(dataset, 1)
    seen = flat([next(first)])
    fill(buffer, 20, first=20)
    assert sorted(seen + flat(first) + flat(second)) == list(range(20))


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_no_two_workers_draw_the_same_batch(buffer, persistent):
    fill(buffer, 1000)
    dataset = IterableDataset(buffer.loader("step", 8, seed=1))
    loader = data_loader(dataset, persistent_workers=persistent)
    found = []
    for _ in range(2):
        torch.manual_seed(0)  # the same seeds of torch for its workers
        found += actions(take(loader, 8))
    found += actions(take(dataset, 8))
    assert len({tuple(batch) for batch in found}) == len(found) == 24


@pytest.mark.thorough
@pytest.mark.slow
def test_the_seed_given_decides_and_not_that_of_torch(buffer):
    fill(buffer, 100)
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        dataset = IterableDataset(buffer.loader("step", 8, seed=7))
        found.append(actions(take(data_loader(dataset), 6)))
    assert found[0] == found[1]


@pytest.mark.thorough
def test_a_seeded_sampler_draws_other_batches_in_each_worker(buffer):
    fill(buffer, 1000)
    dataset = IterableDataset(buffer.loader("step", 8, sampler=RandomSampler(seed=1)))
    found = actions(take(data_loader(dataset), 8))
    assert len({tuple(batch) for batch in found}) == 8


@pytest.mark.thorough
def test_named_tuples_come_out_of_workers(buffer):
    fill(buffer, 16)
    loader = buffer.loader("step", 8, epochs=1, to_named_tuple=("obs", "action"))
    for batch in data_loader(IterableDataset(loader)):
        assert torch.equal(batch.obs[:, 0].long(), batch.action)


def test_a_loaded_state_goes_on_without_workers_only(buffer):
    fill(buffer, 16)
    loader = buffer.loader("step", 4, epochs=1, seed=1)
    dataset = IterableDataset(loader)
    batches = iter(data_loader(dataset, 0))
    first = flat([next(batches)])
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="worker processes cannot continue from it"):
        begin(dataset, 0)
    rest = flat(data_loader(dataset, 0))
    assert sorted(first + rest) == list(range(16))


def check_dataset_by_index(buffer, n_workers, method):
    """Check that torch shuffles and collates the items of a dataset."""
    fill(buffer, 30)
    delete_steps(buffer, [3, 4, 17])
    dataset = Dataset(buffer, "step", info=["seq", "task_id"])
    assert len(dataset) == 27
    options = {"multiprocessing_context": method} if n_workers else {}
    loader = DataLoader(dataset, batch_size=10, shuffle=True, num_workers=n_workers, **options)
    batches = list(loader)
    assert [len(batch["action"]) for batch in batches] == [10, 10, 7]
    assert sorted(flat(batches)) == sorted(set(range(30)) - {3, 4, 17})
    assert batches[0]["obs"].shape == (10, 2)
    assert batches[0]["task_id"] == ["t"] * 10
    assert torch.equal(batches[0]["seq"] - batches[0]["action"], torch.ones(10).long())


@pytest.mark.parametrize(("n_workers", "method"), WORKERS)
def test_a_dataset_by_index_is_shuffled_and_collated_by_torch(buffer, n_workers, method):
    check_dataset_by_index(buffer, n_workers, method)


def test_items_of_a_dataset_are_read_in_one_statement(buffer):
    fill(buffer, 30)
    dataset = Dataset(buffer, "step")
    with selects(buffer) as seen:
        items = dataset.__getitems__([5, 2, 5, -1])
    assert [item["action"].item() for item in items] == [5, 2, 5, 29]
    assert len(seen) == 2  # the window, and the rows
    assert dataset[7]["obs"].tolist() == [7.0, -7.0]
    assert dataset[np.int64(-30)]["action"].item() == 0


def test_items_that_left_are_left_out_of_a_batch_and_raise_alone(buffer_url):
    with ReplayBuffer(buffer_url, max_capacity=20, fields=FIELDS) as buffer:
        fill(buffer, 20)
        dataset = Dataset(buffer, "step")
        fill(buffer, 5, first=20)
        assert [item["action"].item() for item in dataset.__getitems__([4, 5, 0, 19])] == [5, 19]
        with pytest.raises(InsufficientDataError, match=r"none of the items \[3\] is there"):
            dataset[3]
        assert dataset.__getitems__([]) == []
        for index in (20, -21):
            with pytest.raises(IndexError, match="the dataset has 20 items"):
                dataset[index]
        with pytest.raises(TypeError):
            dataset["3"]


def test_a_dataset_of_a_condition_or_of_transitions(buffer):
    buffer.store_episode(
        {"obs": np.arange(12).reshape(6, 2), "action": range(6), "reward": np.ones(6)},
        final={"obs": [0, 0]},
    )
    odd = QueryBuilder().in_("exp_meta.step", [1, 3, 5]).build()
    dataset = Dataset(buffer, "transition", n_step=2, gamma=0.5, condition=odd)
    assert len(dataset) == 3
    item = dataset[0]
    assert item["action"].item() == 1
    assert item["reward"].item() == 1.5
    assert item["next_obs"].tolist() == [6.0, 7.0]
    renamed = Dataset(buffer, fieldname_map={"obs": "state"}, fields=["obs"])
    assert sorted(renamed[0]) == ["discount", "next_obs", "reward", "state", "terminated"]
    with ReplayBuffer("sqlite://", fields=FIELDS) as empty:
        assert len(Dataset(empty)) == 0


def test_datasets_pickle_small_however_many_rows(buffer):
    sizes = []
    for n in (10, 3000):
        fill(buffer, n)
        loader = buffer.loader("step", 8, epochs=1)
        sizes.append(
            [len(pickle.dumps(one)) for one in (IterableDataset(loader), Dataset(buffer, "step"))]
        )
    assert sizes[0] == pytest.approx(sizes[1], abs=20)
    assert max(sizes[1]) < 5_000


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda b: IterableDataset(b), TypeError, "loader is a loader, such as buffer.loader"),
        (lambda b: Dataset(b.loader()), TypeError, "buffer is a ReplayBuffer"),
        (lambda b: Dataset(b, "step", n_step=3), ValueError, "mode 'step' takes no n_step"),
        (lambda b: Dataset(b, "step", shuffle=True), TypeError, "Dataset takes no shuffle"),
        (lambda b: Dataset(b, "step", epochs=1), TypeError, "Dataset takes no epochs"),
        (lambda b: Dataset(b, "step", info="seq"), FieldError, "info is a list of names"),
        (lambda b: Dataset(b, "step", fields=["no"]), FieldError, "unknown field 'no'"),
        (lambda b: Dataset(b, "step", info=["no"])[0], FieldError, "info names 'no'"),
    ],
)
def test_what_a_dataset_cannot_be_made_of_says_so(make, error, message):
    with ReplayBuffer("sqlite://", fields=FIELDS) as buffer:
        fill(buffer, 3)
        with pytest.raises(error, match=message):
            make(buffer)


@pytest.mark.slow
def test_the_library_is_imported_without_torch_which_is_asked_for_where_it_is_needed():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import sqlbuffer.buffer\n"
        "try: import sqlbuffer.torch\n"
        "except ImportError as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "MissingExtraError sqlbuffer.torch needs torch; run `pip install '.[torch]'` in the "
        "checkout of sqlbuffer"
    )


@pytest.mark.thorough
def test_processes_agree_on_what_the_first_of_them_said():
    meeting = Meeting()
    found = run_at_once([(meeting.agree, "range", os.getpid)] * 4)
    assert len(set(found)) == 1
    assert sorted(run_at_once([(meeting.join, "a", w, 0) for w in (0, 1)])) == [0, 0]
    # Another iteration, with the same token or another one, in any order.
    assert run_at_once([(meeting.join, "b", w, 0) for w in (0, 1)]) == [1, 1]
    assert run_at_once([(meeting.join, "a", w, 0) for w in (0, 1)]) == [2, 2]
    folder = meeting._folder
    assert folder.exists()
    assert run_at_once([(str, meeting)])  # a forked copy that goes leaves it
    assert pickle.loads(pickle.dumps(meeting)).agree("range", lambda: 0) == found[0]
    assert folder.exists()
    del meeting
    assert not folder.exists()


def test_intervals_are_the_numbers_they_were_made_of():
    rng = np.random.default_rng(0)
    for share in (0.0, 0.1, 0.9, 1.0):
        numbers = np.flatnonzero(rng.random(200) < share)
        found = Intervals(numbers)
        assert len(found) == numbers.size
        np.testing.assert_array_equal(found[np.arange(numbers.size)], numbers)
    assert len(Intervals((5, 4))) == 0
    assert Intervals((5, 9))[np.array([4, 0])].tolist() == [9, 5]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_the_orders_of_workers_have_each_number_once(shuffle, n_workers):
    for span in (0, 1, 2, 7, 300):
        found = []
        for worker in range(n_workers):
            rng = np.random.default_rng(4) if shuffle else None
            order = Order(10, 10 + span, rng, worker, n_workers)
            numbers, places = order.after(0, 1000, 0)
            np.testing.assert_array_equal(order.after(3, 1000, 0)[0], numbers[3:])
            np.testing.assert_array_equal(order.after(0, 1000, 12)[0], numbers[numbers > 12])
            keys = np.arange(11, 11 + span, 3)
            order.restrict(np.concatenate([[2], keys, [999]]))
            kept, kept_places = order.after(0, 1000, 0)
            np.testing.assert_array_equal(kept, numbers[np.isin(numbers, keys)])
            np.testing.assert_array_equal(kept_places, places[np.isin(numbers, keys)])
            assert order.after(0, 2, 0)[0].tolist() == kept[:2].tolist()
            found += numbers.tolist()
        assert sorted(found) == list(range(11, 11 + span))


@pytest.mark.thorough
@pytest.mark.slow
def test_forked_workers_read_a_file_that_their_parent_writes_and_closes(make_database_url):
    """Neither the workers nor the rows of the parent suffer when connections were open."""
    url = make_database_url("sqlite", schema=True)
    with ReplayBuffer(url, fields=FIELDS) as buffer:
        fill(buffer, 400)
        dataset = IterableDataset(buffer.loader("step", 4, epochs=1, seed=1))
        seen = []
        for number, batch in enumerate(data_loader(dataset)):
            seen += batch["action"].tolist()
            fill(buffer, 10, first=400 + 10 * number)
            buffer.close()
        n_rows = 400 + 10 * (number + 1)
        assert sorted(seen) == list(range(400))
    assert scalar(url, "PRAGMA integrity_check") == "ok"
    assert scalar(url, "SELECT count(*) FROM step_numbers") == n_rows
