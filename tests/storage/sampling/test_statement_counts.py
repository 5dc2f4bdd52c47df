"""How many statements a batch costs: the window, the keys, and what is near to them elsewhere."""

import numpy as np
import pytest

from sqlbuffer import FifoSampler, LatestSampler, QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.batches.forms import StepForm, TrajectoryForm, TransitionForm, WindowForm
from sqlbuffer.query.tree import check
from tests.storage.sampling.readers import reader_of
from tests.support.episodes import FIELDS, Made, store
from tests.support.statements import selects

READERS = {
    "steps": StepForm.of,
    "transitions": lambda fields: TransitionForm.of(fields),
    "5-step transitions": lambda fields: TransitionForm.of(fields, 5),
    "sequences": lambda fields: TransitionForm.of(fields, 3, sequence_fields=["action"]),
    "stacks": lambda fields: TransitionForm.of(fields, 2, stack={"obs": 4}),
    "windows": lambda fields: WindowForm.of(fields, 4, 2),
    "trajectories": TrajectoryForm.of,
    "partial trajectories": lambda fields: TrajectoryForm.of(fields, include_partial=True),
}
SAMPLERS = {
    "replaced": lambda: RandomSampler(replace=True),
    "not replaced": RandomSampler,
    "seeded": lambda: RandomSampler(seed=1),
    "latest": LatestSampler,
    "fifo": FifoSampler,
}


def draw(buffer, reader, sampler, n, condition=None):
    return buffer._store.draws.draw(
        check(condition), lambda found: reader.draw(found, sampler, n), reader.columns
    )


@pytest.fixture(params=["row", "episode"])
def buffer(request, buffer_url):
    limits = {"max_episodes": 30} if request.param == "episode" else {}
    with ReplayBuffer(buffer_url, fields=FIELDS, **limits) as buffer:
        # Every step can be trained on: nothing is rejected.
        store(buffer, buffer_url, [Made(8 + i % 3, final=True) for i in range(30)])
        yield buffer


@pytest.mark.each_value
@pytest.mark.slow
def test_a_batch_costs_two_or_three_statements(buffer):
    for kind, make in READERS.items():
        reader = reader_of(buffer, make(buffer._store.info.config.fields))
        for name, sampler in SAMPLERS.items():
            with selects(buffer) as noted:
                assert draw(buffer, reader, sampler(), 8).n_rows == 8
            # Episodes are chosen by a statement of their own.
            assert len(noted) == (3 if "trajectories" in kind else 2), (kind, name)


@pytest.mark.thorough
def test_keys_that_are_given_cost_one_statement(buffer):
    for kind, make in READERS.items():
        reader = reader_of(buffer, make(buffer._store.info.config.fields))
        with buffer._store.source.candidates(check(None), reader.columns) as candidates:
            with selects(buffer) as noted:
                batch = reader.read(candidates, np.arange(1, 60))
            assert batch.n_rows
            assert len(noted) == 1, kind
            with selects(buffer) as noted:
                assert reader.read(candidates, np.arange(1, 60)).n_rows == batch.n_rows
            assert not noted, kind  # they are remembered


def test_a_round_of_rejection_costs_one_statement(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        # Of every 40 steps the last 20 have no successor so far away.
        store(buffer, buffer_url, [Made(40, end="cut", status="open") for _ in range(30)])
        reader = reader_of(buffer, TransitionForm, 20)
        rounds = []

        class Counting(RandomSampler):
            def choose(self, candidates, batch_size):
                rounds.append(batch_size)
                return super().choose(candidates, batch_size)

        with selects(buffer) as noted:
            batch = draw(buffer, reader, Counting(replace=True, seed=1), 64)
        assert set(batch.info["t"].tolist()) <= set(range(20))
        assert batch.n_rows == 64
        assert len(rounds) > 1
        # Those of the keys, and of the steps after them in other chunks.
        assert len(noted) <= 1 + 2 * len(rounds)


def test_too_few_are_noticed_without_end(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        store(buffer, buffer_url, [Made(6, status="aborted") for _ in range(5)])
        for sampler in (RandomSampler(replace=True), RandomSampler(), RandomSampler(seed=1)):
            for make in READERS.values():
                reader = reader_of(buffer, make(buffer._store.info.config.fields))
                if isinstance(reader.form, StepForm):
                    continue
                with selects(buffer) as noted:
                    assert draw(buffer, reader, sampler, 4).n_rows == 0
                assert len(noted) < 12


def test_a_condition_that_few_match_costs_one_statement_for_their_keys(buffer):
    condition = QueryBuilder().eq("exp_meta.task_id", "e3").build()
    reader = reader_of(buffer, TransitionForm, 2)
    with selects(buffer) as noted:
        batch = draw(buffer, reader, RandomSampler(replace=True), 8, condition)
    assert set(batch.info["episode"]) == {"e3"}
    # The window, the keys of the task, which of them match, and their steps.
    assert len(noted) == 4
