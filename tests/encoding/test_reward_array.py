"""Rewards that their column cannot hold, next to arrays in the same JSON. No database."""

import numpy as np

from sqlbuffer.encoding.columns import encode_columns, reward_array


def test_a_tagged_reward_is_read_without_the_arrays_of_its_row():
    columns = {"reward": [-0.0, np.nan], "extra": [{"a": np.ones(3)}, None]}
    records = encode_columns(columns)
    rewards = reward_array([r.reward_t for r in records], [r.extra for r in records])
    assert rewards.tobytes() == np.array([-0.0, np.nan]).tobytes()
