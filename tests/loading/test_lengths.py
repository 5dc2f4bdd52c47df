"""How long a loader of passes is: as many batches as its iteration has, whatever they hold."""

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer

FIELDS = {"obs": ("float32", (2,)), "x": {"dtype": "int64", "column": True}}
MODES = {
    "steps": {"mode": "step"},
    "transitions": {"mode": "transition", "skip_single": True},
    "transitions of three steps": {"mode": "transition", "n_step": 3, "skip_single": True},
    "sequences": {
        "mode": "n_step",
        "n_step": 3,
        "sequence_fields": ["obs"],
        "skip_single": True,
    },
    "windows": {"mode": "window", "length": 4, "stride": 3},
    "windows with a burn-in": {"mode": "window", "length": 3, "burn_in": 2},
    "episodes": {"mode": "trajectory"},
    "parts of episodes": {"mode": "trajectory", "include_partial": True},
}


@pytest.fixture
def buffer(buffer_url):
    """Yield a buffer with an episode that was clipped, one with a hole, an open one, and others."""
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=60) as buffer:
        for i, n in enumerate([7, 9, 1, 5, 20, 13, 11]):
            buffer.store_episode(
                {"obs": np.zeros((n, 2)), "x": np.arange(n)},
                episode_id=f"e{i}",
                final={"obs": np.zeros(2)} if i % 2 else None,
            )
        writer = buffer.episode(episode_id="open")
        for x in range(6):
            writer.append(obs=np.zeros(2), x=x)
        buffer.flush()
        buffer.extend({"obs": np.zeros((3, 2)), "x": [1, 2, 3]})
        buffer.delete(QueryBuilder().eq("episode_id", "e4").and_().eq("x", 3))
        yield buffer


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("options", MODES.values(), ids=MODES.keys())
def test_a_loader_is_as_long_as_its_iteration(buffer, options):
    if options["mode"] == "trajectory":
        conditions = [None]  # none is about a whole episode
    else:
        conditions = [None, QueryBuilder().gt("x", 2).build()]
    for condition in conditions:
        for drop_last in (False, True):
            loader = buffer.loader(
                **options,
                batch_size=4,
                epochs=2,
                drop_last=drop_last,
                shuffle=drop_last,
                condition=condition,
            )
            assert len(loader) == sum(1 for _ in loader) > 0


def test_a_loader_of_an_empty_buffer_is_empty(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        for options in MODES.values():
            assert len(buffer.loader(**options, batch_size=4, epochs=2)) == 0


def test_a_mode_without_passes_has_no_length(buffer):
    for options in MODES.values():
        with pytest.raises(TypeError, match="give epochs"):
            len(buffer.loader(**options, batch_size=4))
