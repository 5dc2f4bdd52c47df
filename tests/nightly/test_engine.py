"""The comparison of both engines with the model in plain Python, at length."""

import pytest

from tests.engine.test_differential import SETTINGS, compare_engines
from tests.engine.worlds import KINDS

N_SEEDS, N_ROUNDS = 4, 4


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_engine_makes_the_batches_of_the_model_at_length(schema_url, kind, name):
    for seed in range(1, N_SEEDS + 1):
        compare_engines(schema_url, kind, name, seed, N_ROUNDS)
