"""Draws from cells: one number from each of equal parts of the sum of all weights."""

import numpy as np
import pytest

from sqlbuffer.compat.ding.prioritized_ring import BLOCK, CellWeights
from tests.support.priorities import assert_shares

N_BLOCKS = 20
N_CELLS = N_BLOCKS * BLOCK


def filled(low, end):
    """Return cells with priorities for the numbers low to end - 1, and these priorities."""
    numbers = np.arange(low, end)
    priorities = np.random.default_rng(0).gamma(1.0, 1.0, numbers.size)
    priorities[::7] = 0.0
    cells = CellWeights(N_BLOCKS, alpha=0.6)
    cells.set(numbers % N_CELLS, priorities)
    return cells, dict(zip(numbers.tolist(), priorities.tolist(), strict=True))


# Few parts have blocks of their own; many share them.
@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("low", [0, 5_000, 7 * N_CELLS - 100])
def test_numbers_are_drawn_by_weight_also_where_the_ring_wraps(n, low):
    end = low + N_CELLS - BLOCK
    cells, priorities = filled(low, end)
    drawn = [number for key in range(3_000 // n) for number in cells.draw(key, low, end, n)]
    weights = {number: p**0.6 for number, p in priorities.items()}
    of_block = {number: number // BLOCK for number in weights}
    assert all(weights[number] > 0 for number in drawn)
    sums = {}
    for number, weight in weights.items():
        sums[of_block[number]] = sums.get(of_block[number], 0.0) + weight
    assert_shares([of_block[number] for number in drawn], sums)
    # Within blocks too: by the place in the block.
    places = {}
    for number, weight in weights.items():
        places[number % BLOCK] = places.get(number % BLOCK, 0.0) + weight
    assert_shares([number % BLOCK for number in drawn], places)


def test_each_part_has_its_number_in_order():
    cells, priorities = filled(0, N_CELLS - BLOCK)
    ends = np.cumsum([p**0.6 for p in priorities.values()])
    for key in range(50):
        for n in (2, 40):
            drawn = cells.draw(key, 0, N_CELLS - BLOCK, n)
            assert (np.sort(drawn) == drawn).all()
            parts = ends[drawn] / ends[-1] * n
            # A block may hold the edge of two parts.
            assert (np.abs(parts - np.arange(n) - 0.5) < 0.5 + 2 * n / N_BLOCKS).all()


def test_a_key_repeats_a_draw_and_a_change_is_seen():
    cells, _ = filled(0, 300)
    first = cells.draw(7, 0, 300, 3).tolist()
    assert cells.draw(7, 0, 300, 3).tolist() == first
    cells.set(np.arange(300), 0.0)
    cells.set(np.array([123]), 2.0)
    assert cells.draw(7, 0, 300, 3).tolist() == [123] * 3
    assert cells.least() == 2.0


@pytest.mark.slow
def test_only_given_numbers_are_drawn():
    cells, priorities = filled(0, 1_000)
    among = np.arange(100, 400, 3)
    drawn = [number for key in range(400) for number in cells.draw(key, 0, 1_000, 8, among)]
    assert_shares(drawn, {number: priorities[number] ** 0.6 for number in among.tolist()})


def test_nothing_is_drawn_where_all_weights_are_0():
    cells = CellWeights(3, alpha=0.0)
    cells.set(np.arange(5), 0.0)
    assert cells.draw(1, 0, 5, 2).size == 0
    assert cells.draw(1, 0, 0, 2).size == 0
    assert cells.least() == np.inf
