"""Limits of a buffer hold for every step of what a mirror makes, as for what the buffer makes."""

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from tests.support.episodes import FIELDS
from tests.support.mirrors import assert_same_batches

FORMS = [
    ("transition", {"n_step": 3, "stack": {"obs": 2}}),
    ("window", {"length": 4, "burn_in": 2, "stack": {"obs": 3}}),
    ("trajectory", {}),
    ("trajectory", {"include_partial": True}),
]


def columns(n):
    t = np.arange(n)
    return {"obs": np.stack([t, t], 1).astype("f4"), "action": t, "reward": t.astype(float)}


def assert_same_passes(buffer, mirror):
    for mode, options in FORMS:
        given = {"epochs": 1, "shuffle": False, **options}
        assert_same_batches(buffer.loader(mode, 16, **given), mirror.loader(mode, 16, **given))


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings", [{"max_staleness": 2}, {"current_session_only": True}, {"min_size": 20}]
)
def test_passes_under_limits_are_those_of_the_buffer(buffer_url, settings):
    with ReplayBuffer(buffer_url, fields=FIELDS, **settings) as buffer, buffer.mirror() as mirror:
        for number in range(6):
            session = buffer.start_session(f"s{number // 3}")
            keys = {"model_version": number, "session_id": session}
            buffer.store_episode(columns(9), episode_id=f"e{number}", **keys)
        buffer.set_clock(5)
        mirror.refresh()
        assert_same_passes(buffer, mirror)
        buffer.quarantine([15, 40, 41])
        mirror.refresh()
        assert_same_passes(buffer, mirror)


@pytest.mark.thorough
def test_an_episode_that_is_stored_again_under_its_id_is_read_again(buffer_url):
    with (
        ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=300) as buffer,
        buffer.mirror() as mirror,
    ):
        for length in (7, 4, 9):
            buffer.store_episode(columns(length), episode_id="same", final={"obs": [length, 0]})
            buffer.store_episode(columns(3), episode_id=f"other{length}")
            mirror.refresh()
            assert_same_passes(buffer, mirror)
            for number in range(6):
                buffer.store_episode(columns(60), episode_id=f"filler{length}{number}")
            mirror.refresh()
            assert_same_passes(buffer, mirror)
