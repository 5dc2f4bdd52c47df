"""The buffer and a plain numpy model of it, used at random side by side."""

import os
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

pytest.importorskip("torch")

from sqlbuffer.compat.memmap import ReplayBuffer
from tests.compat.memmap.datasets.loaded import LoadedModel

FIELDS = {"x": ("float", (2,), -1.0), "a": ("int", (), 7), "reward": "float", "done": "bool"}
META = {"task": ("int", (), -1), "goal": ("float", 2)}
SLOTS, STEPS = 3, 4
SHAPE = {
    "max_episodes": SLOTS,
    "max_timesteps": STEPS,
    "fields": FIELDS,
    "meta_fields": META,
}
LOADERS = (
    {"return_indices": True, "return_mask": True},
    {"return_indices": True, "dataset_kwargs": {"slice_by_episode_len": False}},
    {"timestep_level": True, "return_indices": True, "filter_fields": {"done": False}},
    {"n_steps": 2, "sequence_fields": ("x", "reward"), "filter_meta": {"task": 1}},
)
numbers = st.integers(0, 9)
lengths = st.integers(0, STEPS)
slots_ = st.integers(0, SLOTS - 1)
_names = count()


def values_of(number, shape=()):
    """Return values that tell a number; some fields are left out."""
    ahead = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    found = {
        "x": np.stack([ahead + number, ahead - number], -1),
        "a": (ahead + number).astype(int),
        "done": ahead % 2 == number % 2,
        "reward": ahead / 4 - number,
    }
    if number % 3 == 0:
        del found["a"]
    return found


class Together(RuleBasedStateMachine):
    url: str
    circular: bool

    def __init__(self):
        super().__init__()
        shape = {**SHAPE, "circular": self.circular}
        self.model = LoadedModel(**shape)
        self.real = ReplayBuffer(self.url, name=f"random_{next(_names)}", **shape)

    def teardown(self):
        self.real.close()

    def both(self, use):
        """Do the same with both, which may both refuse it."""
        results = []
        for buffer in (self.model, self.real):
            try:
                use(buffer)
                results.append("done")
            except ValueError:
                results.append("refused")
        assert results[0] == results[1], results

    @rule(number=numbers)
    def store(self, number):
        def use(buffer):
            buffer.store(**values_of(number))

        self.both(use)

    @rule()
    def advance(self):
        self.both(lambda buffer: buffer.advance_episode())

    @precondition(lambda self: self.model.timestep_index == 0)
    @rule(n=lengths, number=numbers, ends=st.sampled_from(["well", "raising"]))
    def one_episode(self, n, number, ends):
        def use(buffer):
            with buffer.one_episode(task=number % 3) as last:
                for t in range(n):
                    buffer.store(**values_of(number + t))
                last["goal"] = np.full(2, number, np.float32)
                if ends == "raising":
                    raise ValueError("the block raises")

        self.both(use)

    @precondition(lambda self: self.model.timestep_index == 0)
    @rule(n=lengths, number=numbers)
    def store_episode(self, n, number):
        self.both(lambda buffer: buffer.store_episode(**values_of(number, (n,)), task=number % 3))

    @precondition(lambda self: self.model.timestep_index == 0)
    @rule(n=lengths, n_slots=st.integers(1, SLOTS), number=numbers)
    def batched_episode(self, n, n_slots, number):
        def use(buffer):
            with buffer.batched_episode(n_slots, task=np.arange(n_slots)):
                for t in range(n):
                    buffer.store_batch(**values_of(number + t, (n_slots,)))

        self.both(use)

    @rule(slot=slots_, t=st.integers(0, STEPS - 1), number=numbers)
    def write_a_cell(self, slot, t, number):
        for buffer in (self.model, self.real):
            buffer.data["x"][slot, t] = [number, 0.5]
            buffer.data["done"][slot, t:] = True

    @rule(slot=slots_, t=st.integers(0, STEPS - 1), number=numbers)
    def write_to_what_an_index_returned(self, slot, t, number):
        for buffer in (self.model, self.real):
            steps = buffer.data["x"][slot]
            steps[t][0] = number
            steps[t:] += 1
            buffer.data["reward"][slot][:t].fill(number)
            buffer.meta_data["goal"][slot][1] = number

    @rule(slot=slots_, number=numbers)
    def write_a_value_of_an_episode(self, slot, number):
        for buffer in (self.model, self.real):
            buffer.meta_data["goal"][slot] = number

    @rule(n=st.integers(1, STEPS), number=numbers)
    def update(self, n, number):
        held = np.flatnonzero(self.model.episode_lens)
        if len(held):
            values = np.full((len(held), n), number / 2, np.float32)
            self.model.update(held, reward=values, task=np.full(len(held), number))
            self.real.update(held, reward=values, task=np.full(len(held), number))

    @rule()
    def flush(self):
        self.real.flush()

    @rule(chance=st.integers(0, 4))
    def clear(self, chance):
        if chance == 0:
            self.both(lambda buffer: buffer.clear())

    @rule(options=st.sampled_from(LOADERS))
    def load(self, options):
        def use(buffer):
            batches.append(list(buffer.dataloader(2, **options)))

        batches = []
        self.both(use)
        for ours, theirs in zip(*reversed(batches) if batches else ((), ()), strict=True):
            assert list(ours) == list(theirs)
            for name, values in ours.items():
                assert values.dtype == theirs[name].dtype
                np.testing.assert_array_equal(values.numpy(), theirs[name].numpy(), name)

    @invariant()
    def everything_is_the_same(self):
        model, real = self.model, self.real
        for name in ("num_episodes", "episode_index", "timestep_index"):
            assert getattr(real, name) == getattr(model, name), name
        assert len(real) == len(model)
        np.testing.assert_array_equal(np.asarray(real.episode_lens), model.episode_lens)
        slots, ts = np.divmod(np.arange(SLOTS * STEPS).reshape(SLOTS, STEPS), STEPS)
        found = {**real._cells(FIELDS, slots, ts), **real._meta(META, slots[:, 0])}
        for name, values in {**model._cells(FIELDS, slots, ts), **model.meta_data}.items():
            if name in found:
                np.testing.assert_array_equal(found[name], values, name)


@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize("circular", [False, True])
def test_a_buffer_used_at_random_is_what_its_model_is(buffer_url, circular):
    machine = type("Machine", (Together,), {"url": buffer_url, "circular": circular})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("MEMMAP_EXAMPLES", 5)),
            stateful_step_count=15,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
