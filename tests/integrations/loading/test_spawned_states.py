"""Spawned workers that continue from their states, with batches fetched ahead in each."""

import pytest

from tests.loading.test_torch_states import buffer, check_draws

__all__ = ["buffer"]

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def test_draws_of_spawned_workers_continue_exactly(buffer):
    check_draws(buffer, "spawn")
