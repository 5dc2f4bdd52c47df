"""Every public call with every odd value; tests/test_arguments.py has a part of them."""

import pytest

from tests.support.odd_values import ODD
from tests.support.public_calls import public_calls
from tests.test_arguments import faults, odd_calls, world

__all__ = ["world"]

OWNERS = sorted({call.owner for call in public_calls()})


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("owner", OWNERS)
def test_every_odd_argument_is_refused_by_name_and_nothing_is_written(world, owner):
    n = len(ODD) if world.url.startswith("sqlite") else 4
    calls = [each for each in odd_calls(n, "every") if each[0].owner == owner]
    assert faults(world, calls) == {}
