"""Each kind of buffer in a loop of the shape of DI-engine's serial pipeline."""

import threading

import numpy as np
import pytest

from sqlbuffer.compat.ding import AdvancedReplayBuffer
from tests.compat.ding.priority_model import Model

OWN = ("replay_unique_id", "replay_buffer_idx", "priority", "use", "staleness", "obs")


@pytest.mark.thorough
@pytest.mark.slow
def test_an_advanced_buffer_is_what_the_model_is_iteration_by_iteration(make):
    limits = {"max_use": 5, "max_staleness": 4, "alpha": 0.6, "beta": 0.4, "anneal_step": 30}
    buffer = make("advanced", size=24, seed=3, **limits)
    model = Model(24, **limits)
    rng = np.random.default_rng(0)
    n_batches = n_updated = 0
    for iteration in range(40):
        new = [
            {"obs": 10 * iteration, "collect_iter": iteration},
            {"obs": 10 * iteration + 1, "collect_iter": [iteration + 1, iteration - 1]},
            {"obs": 10 * iteration + 2},
            {"obs": 10 * iteration + 3, "collect_iter": iteration - 2, "priority": rng.random()},
        ]
        model.push(new[: 1 + iteration % 4])
        buffer.push([dict(item) for item in new[: 1 + iteration % 4]], iteration * 8)
        for _ in range(2):
            model.remove_stale(iteration)
            batch = buffer.sample(8, iteration)
            if len(model.items) < 8:
                assert batch is None
                break
            n_batches += 1
            expected = model.sample([item["replay_unique_id"] for item in batch], iteration)
            for item, wanted in zip(batch, expected, strict=True):
                assert {key: item[key] for key in OWN} == {key: wanted[key] for key in OWN}
                assert item["IS"] == pytest.approx(wanted["IS"], rel=1e-9)
                assert isinstance(item["IS"], np.float64)
            if iteration % 3:
                priorities = (rng.random(8) * 4).tolist()
                info = {key: [item[key] for item in batch] for key in OWN[:2]}
                buffer.update({**info, "priority": priorities})
                model.update(info["replay_unique_id"], priorities)
                n_updated += 1
        assert buffer.count() == len(model.items)
        assert buffer.beta == pytest.approx(model.beta, rel=1e-12)
        assert buffer.push_count == model.push_count
        assert buffer._throughput.remove_data_count == model.n_out
    assert n_batches > 20
    assert n_updated > 10


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["naive", "elastic", "episode", "sequence"])
def test_the_other_kinds_are_what_a_list_is_iteration_by_iteration(kind, make):
    changes = {"set_buffer_size": lambda envstep: 12} if kind == "elastic" else {}
    changes |= {"episode_length": 6} if kind == "sequence" else {}
    buffer = make(kind, size=30, **changes)
    held, n_pushed = [], 0
    for iteration in range(24):
        new = [{"obs": 5 * iteration + i} for i in range(1 + iteration % 5)]
        if kind == "episode":
            new = [[step, step] for step in new]
        buffer.push(new, iteration * 8)
        held = [*held, *new][-30:]
        if kind == "elastic":
            buffer.update(iteration * 8)
        length = (2,) if kind == "sequence" else ()
        batch = buffer.sample(4, *length, iteration)
        n_pushed += len(new)
        assert (buffer.count(), buffer.push_count) == (len(held), n_pushed)
        if batch is None:
            assert len(held) < 8
            continue
        assert len(batch) == 4
        for item in batch:
            if kind == "sequence":
                at = held.index(item[0])
                assert item == held[at : at + 2]
            else:
                assert item in (held[-12:] if kind == "elastic" else held)


@pytest.mark.thorough
@pytest.mark.slow
def test_two_learners_and_a_collector_share_every_count(buffer_url):
    config = {"replay_buffer_size": 64, "max_use": 3, "anneal_step": 50, "url": buffer_url}
    collector, *learners = (
        AdvancedReplayBuffer({**config, "name": "shared"}, instance_name=name)
        for name in ("collector", "first", "second")
    )
    model = Model(64, max_use=3, max_staleness=np.inf, alpha=0.6, beta=0.4, anneal_step=50)
    for iteration in range(12):
        items = [{"obs": 4 * iteration + i} for i in range(4)]
        collector.push(items, 0)
        assert items[0]["replay_unique_id"] == f"collector_{4 * iteration}"
        model.push([{"obs": item["obs"]} for item in items])
        learner = learners[iteration % 2]
        batch = learner.sample(4, iteration)
        if batch is None:
            assert len(model.items) < 4
            continue
        ids = [item["replay_unique_id"] for item in batch]
        expected = model.sample(ids, iteration)
        assert [item["use"] for item in batch] == [item["use"] for item in expected]
        info = {key: [item[key] for item in batch] for key in OWN[:2]}
        learners[0].update({**info, "priority": [2.0 + iteration] * 4})
        model.update(ids, [2.0 + iteration] * 4)
        for each in (collector, *learners):
            assert each.count() == len(model.items)
            assert each.beta == pytest.approx(model.beta)
            assert each.push_count == model.push_count
    for each in (collector, *learners):
        each.close()


@pytest.mark.thorough
@pytest.mark.slow
def test_threads_that_push_sample_and_update_at_once_lose_no_count(make, place):
    config = {"size": 500, "anneal_step": 100}
    first = make("advanced", **config)
    buffers = [first, make("advanced", **config) if place else first]
    buffers[0].push([{"obs": -1}] * 16, 0)
    ids, n_sampled, errors = [], [], []

    def collect(buffer):
        for _ in range(10):
            items = [{"obs": i} for i in range(5)]
            buffer.push(items, 0)
            ids.extend(item["replay_unique_id"] for item in items)

    def learn(buffer):
        for iteration in range(10):
            batch = buffer.sample(8, iteration)
            info = {key: [item[key] for item in batch] for key in OWN[:2]}
            buffer.update({**info, "priority": [2.0] * 8})
            n_sampled.append(len(batch))

    def run(work, buffer):
        try:
            work(buffer)
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(work, buffer))
        for work in (collect, learn)
        for buffer in buffers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    numbers = sorted(int(id_.split("_")[1]) for id_ in ids)
    assert numbers == list(range(16, 116))
    state = buffers[1].state_dict()
    assert (state["push_count"], state["valid_count"]) == (116, 116)
    assert sum(state["use_count"].values()) == sum(n_sampled) == 160
    assert state["beta"] == pytest.approx(0.4 + 20 * 0.6 / 100)
