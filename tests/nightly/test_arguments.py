"""Every public call with many odd values; tests/test_arguments.py has a part of them."""

import pytest

from tests.support.public_calls import public_calls
from tests.test_arguments import faults, odd_calls, world

__all__ = ["world"]

OWNERS = sorted({call.owner for call in public_calls()})


@pytest.mark.each_value
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("owner", OWNERS)
def test_more_odd_arguments_are_refused_by_name_and_nothing_is_written(world, owner):
    # Of 71. On PostgreSQL contents are compared after each call, which takes more time.
    n = 12 if world.url.startswith("sqlite") else 1
    calls = [each for each in odd_calls(n, "every") if each[0].owner == owner]
    assert faults(world, calls) == {}
