"""Random operations against a model of a few lines: the buffer is what the model says, always."""

import itertools

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from sqlbuffer import QueryBuilder, ReplayBuffer
from tests.support.sql import run
from tests.support.stepped_rows import EVERY_ROW, make_row

TASKS = st.sampled_from("abcd")
BATCHES = st.lists(st.tuples(TASKS, st.integers(0, 30)), max_size=12)
CAPACITIES = st.one_of(st.none(), st.integers(1, 15))


class Model:
    """What a buffer is: rows (seq, id, task, step), in order."""

    def __init__(self, evict_by):
        self.evict_by = evict_by
        self.rows, self.capacity, self.low, self.next_seq, self.last_write = [], None, 0, 1, {}

    def store(self, batch):
        held = {row[1] for row in self.rows}
        new = list({row[0]: row for row in batch if row[0] not in held}.values())
        for row in new:
            self.rows.append((self.next_seq, *row))
            self.last_write[row[1]] = self.next_seq
            self.next_seq += 1
        self.evict()
        return len(new)

    def evict(self):
        if self.capacity is None:
            return
        if self.evict_by == "row":
            self.low = max([self.low, *(row[0] - self.capacity for row in self.rows)])
            self.rows = [row for row in self.rows if row[0] > self.low]
        while len(self.rows) > self.capacity:
            tasks = sorted({row[2] for row in self.rows}, key=self.last_write.__getitem__)
            if len(tasks) == 1:
                self.rows = self.rows[-self.capacity :]
            self.rows = [row for row in self.rows if len(tasks) == 1 or row[2] != tasks[0]]


class Machine(RuleBasedStateMachine):
    """The buffer and its model, side by side."""

    url: str
    evict_by: str
    names = itertools.count()

    def __init__(self):
        super().__init__()
        self.buffer = ReplayBuffer(self.url, name=f"m{next(self.names)}", evict_by=self.evict_by)
        self.model = Model(self.evict_by)
        self.ids = itertools.count()
        self.sent = []

    def send(self, batch):
        self.sent = (self.sent + batch)[-40:]
        result = self.buffer.store_batch(
            [make_row(step, task=task, id=id_) for id_, task, step in batch]
        )
        assert result.inserted == self.model.store(batch)
        assert (result.inserted + result.duplicates, result.conflicts) == (len(batch), 0)

    @rule(batch=BATCHES)
    def store_batch(self, batch):
        self.send([(f"i{next(self.ids)}", task, step) for task, step in batch])

    @rule(task=TASKS, step=st.integers(0, 30))
    def add(self, task, step):
        self.send([(f"i{next(self.ids)}", task, step)])

    @rule(data=st.data())
    def resend(self, data):
        if self.sent:
            self.send(data.draw(st.lists(st.sampled_from(self.sent), max_size=12)))

    @rule(step=st.integers(0, 30))
    def delete_later_steps(self, step):
        doomed = [row for row in self.model.rows if row[3] >= step]
        condition = QueryBuilder().gte("exp_meta.step", step).build()
        assert self.buffer.delete(condition) == len(doomed)
        self.model.rows = [row for row in self.model.rows if row[3] < step]

    @rule(task=TASKS)
    def delete_task_by_hand(self, task):
        doomed = {"b": self.buffer.name, "t": task}
        run(
            self.url,
            "DELETE FROM experiences WHERE task_id = :t AND buffer_id = "
            "(SELECT id FROM buffers WHERE name = :b)",
            **doomed,
        )
        self.model.rows = [row for row in self.model.rows if row[2] != task]

    @rule()
    def clear(self):
        assert self.buffer.clear() == len(self.model.rows)
        self.model.rows = []

    @rule(capacity=CAPACITIES)
    def resize(self, capacity):
        self.buffer.resize(capacity)
        self.model.capacity = capacity
        self.model.evict()

    @invariant()
    def holds_what_the_model_holds(self):
        held = [(r.seq, r.id, r.exp_meta.task_id, r.exp_meta.step) for r in self.buffer.get_all()]
        assert held == self.model.rows
        assert len(self.buffer) == self.buffer.size(EVERY_ROW) == len(self.model.rows)


def check_model(url, evict_by, max_examples):
    """Check that the buffer is what the model says, after each series of steps."""
    run_state_machine_as_test(
        type("BoundMachine", (Machine,), {"url": url, "evict_by": evict_by}),
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=20,
            derandomize=True,
            phases=[Phase.generate],  # shrinking would take minutes, and the steps are few
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# Three times as many are tried among the integrations.
@pytest.mark.slow
@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_the_buffer_is_what_the_model_says(buffer_url, evict_by):
    check_model(buffer_url, evict_by, 5)
