"""Which processes that hold something are alive."""

import os

from sqlbuffer.processes import is_alive, new_holder


def test_who_lives_is_known_exactly_on_this_machine():
    class Owner:
        pass

    owner = Owner()
    holder = new_holder(owner)
    host = holder.split()[0]
    assert is_alive(holder, 1e9, 1.0)
    del owner
    assert not is_alive(holder, 0.0, 1.0)
    assert is_alive(f"{host} {os.getppid()} 0", 1e9, 1.0)
    assert is_alive(f"{host} 1 0", 1e9, 1.0)
    assert not is_alive(f"{host} {2**22 + 5} 0", 0.0, 1.0)
    assert is_alive("elsewhere 1 0", 0.5, 1.0)
    assert not is_alive("elsewhere 1 0", 1.5, 1.0)
