"""A naive buffer and a plain list, used at random side by side."""

import os
import shutil
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from sqlbuffer.compat.ding import create_buffer
from tests.compat.ding.model import Model
from tests.conftest import close_pool

SIZE = 4
sizes = st.integers(0, SIZE + 2)
ends = st.none() | st.integers(-SIZE - 1, SIZE + 1)
ranges = st.builds(slice, ends, ends, st.none() | st.sampled_from([1, 2, -1]))
_names = count()


class Together(RuleBasedStateMachine):
    config: dict
    folder: object

    def __init__(self):
        super().__init__()
        self.model = Model(SIZE)
        self.buffer = self.opened()
        self.numbers = count()

    def opened(self):
        name = f"random_{next(_names)}"
        return create_buffer(
            {"type": "naive", "replay_buffer_size": SIZE, **self.config, "name": name}
        )

    def teardown(self):
        self.buffer.close()

    @rule(n=st.sampled_from([0, 1, 2, 3, SIZE, SIZE + 1, 2 * SIZE + 1]))
    def push_a_list(self, n):
        items = [{"n": next(self.numbers)} for _ in range(n)]
        self.buffer.push(items, 0)
        self.model.push(items)

    @rule(item=st.none() | st.integers(1000, 2000))
    def push_one(self, item):
        self.buffer.push(item, 0)
        self.model.push([item])

    @rule(n=sizes, replace=st.booleans())
    def sample(self, n, replace):
        self.check(self.buffer.sample(n, 0, None, replace), self.model.items, n, replace)

    @rule(n=sizes, replace=st.booleans(), which=ranges)
    def sample_of_a_range(self, n, replace, which):
        among = self.model.items[which]
        if n and self.model.can_draw(n, replace) and (len(among) < n and not (replace and among)):
            with pytest.raises(ValueError, match=f"has {len(among)} of {len(self.model.items)}"):
                self.buffer.sample(n, 0, which, replace)
            return
        self.check(self.buffer.sample(n, 0, which, replace), among, n, replace)

    def check(self, drawn, among, n, replace):
        if n == 0:
            assert drawn == []
        elif not self.model.can_draw(n, replace):
            assert drawn is None
        else:
            assert len(drawn) == n
            assert all(item in among for item in drawn)
            if not replace:
                left = list(among)
                for item in drawn:
                    left.remove(item)

    @rule()
    def clear(self):
        self.buffer.clear()
        self.model.clear()

    @rule(by_file=st.booleans())
    def restore_in_another(self, by_file):
        other = self.opened()
        if by_file:
            self.buffer.save_data(self.folder / "state")
            other.load_data(self.folder / "state")
        else:
            other.load_state_dict(self.buffer.state_dict())
        self.buffer.close()
        self.buffer = other
        self.model.n_in = self.model.n_out = 0  # each buffer counts what it does itself

    @invariant()
    def watch_the_same(self):
        monitor = self.buffer._throughput
        assert (monitor.push_data_count, monitor.remove_data_count) == (
            self.model.n_in, self.model.n_out,
        )  # fmt: skip

    @invariant()
    def hold_the_same(self):
        assert self.buffer.state_dict() == self.model.state()
        assert (self.buffer.count(), self.buffer.push_count) == (
            len(self.model.items), self.model.push_count,
        )  # fmt: skip


@pytest.fixture(scope="module", params=["private", "sqlite", "postgresql"])
def config(request, tmp_path_factory):
    """Yield where: one database for all examples, each with buffers of its own."""
    if request.param == "private":
        yield {}
    elif request.param == "sqlite":
        path = tmp_path_factory.mktemp("ding") / "replay.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        yield {"url": f"sqlite:///{path}"}
        close_pool(f"sqlite:///{path}")
    else:
        server = request.getfixturevalue("postgres_server")
        url = server.create_database(template=request.getfixturevalue("postgres_template"))
        yield {"url": url}
        close_pool(url)
        server.drop_database(url)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_buffer_does_what_a_list_does(config, tmp_path):
    examples = int(os.environ.get("DING_EXAMPLES", 5))

    class Machine(Together):
        pass

    Machine.config, Machine.folder = config, tmp_path
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
