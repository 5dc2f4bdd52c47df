"""Bare calls at random, beside a model in numpy: steps of a changing number of episodes, advances
of more or fewer than are open, and episodes that are let go of; `test_random_use` has the blocks.
"""

from typing import Any

import numpy as np
import pytest

from sqlbuffer.compat.memmap import ReplayBuffer

N, T = 3, 4


class Model:
    """Slots as arrays; what is open is written to them at once."""

    def __init__(self) -> None:
        self.r = np.full((N, T), -1.0, np.float32)
        self.task = np.full(N, -1, np.int32)
        self.lens = np.zeros(N, np.int32)
        self.num = self.index = self.t = self.n_open = 0

    def begin(self, n: int) -> None:
        for i in range(self.n_open, n):
            slot = (self.index + i) % N
            self.r[slot], self.task[slot], self.lens[slot] = -1, -1, 0
        self.n_open = max(n, self.n_open)

    def store(self, values: list[float]) -> None:
        self.begin(len(values))
        for i, value in enumerate(values):
            self.r[(self.index + i) % N, self.t] = value
            self.lens[(self.index + i) % N] = self.t + 1
        self.t += 1

    def advance(self, n: int) -> None:
        self.begin(n)
        for i in range(n):
            self.lens[(self.index + i) % N] = self.t
        self.drop(self.n_open - n, (self.index + n) % N)
        self.index, self.num = (self.index + n) % N, min(self.num + n, N)

    def drop(self, n: int, first: int) -> None:
        for i in range(n):
            slot = (first + i) % N
            self.r[slot], self.task[slot], self.lens[slot] = -1, -1, 0
        self.n_open = self.t = 0


def step(rng: np.random.Generator, buffer: ReplayBuffer, model: Model) -> str:
    call = str(
        rng.choice(["store", "batch", "advance", "drop", "episode", "cell", "meta", "clear"])
    )
    value = float(rng.integers(100))
    if call in ("store", "batch") and model.t < T:
        values = [value + i for i in range(1 if call == "store" else int(rng.integers(1, N + 1)))]
        if call == "store":
            buffer.store(r=value)
        else:
            buffer.store_batch(r=values)
        model.store(values)
    elif call == "advance" and model.t:
        n = int(rng.integers(1, N + 1))
        buffer.advance_episode(n)
        model.advance(n)
    elif call == "drop":
        buffer.timestep_index = 0
        model.drop(model.n_open, model.index)
    elif call == "episode" and not model.t:
        values = (value + np.arange(rng.integers(1, T + 1))).tolist()
        buffer.store_episode(r=values, task=7)
        for each in values:
            model.store([each])
        model.task[model.index] = 7
        model.advance(1)
    else:
        change(rng, buffer, model, call, value)
    return call


def change(
    rng: np.random.Generator, buffer: ReplayBuffer, model: Model, call: str, value: float
) -> None:
    slots, n = rng.integers(0, N, 2), int(rng.integers(1, T + 1))
    if call == "cell":
        buffer.data["r"][slots, :n] = value
        model.r[slots, :n] = value
    elif call == "meta":
        buffer.meta_data["task"][slots] = [value, value + 1]
        model.task[slots] = [value, value + 1]
    elif call == "clear" and rng.random() < 0.3:
        buffer.clear()
        model.__init__()  # type: ignore[misc]


def seen(buffer: ReplayBuffer) -> dict[str, Any]:
    return {
        "r": buffer.data["r"].tolist(), "task": buffer.meta_data["task"].tolist(),
        "lens": buffer.episode_lens.tolist(), "num": buffer.num_episodes,
        "index": buffer.episode_index, "t": buffer.timestep_index,
    }  # fmt: skip


def expected(model: Model) -> dict[str, Any]:
    return {
        "r": model.r.tolist(), "task": model.task.tolist(), "lens": model.lens.tolist(),
        "num": model.num, "index": model.index, "t": model.t,
    }  # fmt: skip


@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_leave_what_the_model_has(make, reopen, seed):
    rng = np.random.default_rng(seed)
    buffer, model, calls = make(circular=True), Model(), []
    for _ in range(120):
        calls.append(step(rng, buffer, model))
        assert seen(buffer) == expected(model), calls
    buffer.timestep_index = 0
    model.drop(model.n_open, model.index)
    assert seen(reopen()) == expected(model)
