"""kill -9 of writers at random moments, at the default durability."""

import itertools
import multiprocessing
import os
import random
import signal
import time

import pytest

from sqlbuffer import ReplayBuffer
from tests.support.batches import (
    batches_of,
    counts,
    held,
    integrity,
    log_inserts,
    logged,
    make_batch,
)
from tests.support.processes import TIMEOUT_S, running, wait_until
from tests.support.sql import is_sqlite, stored_rows

pytestmark = pytest.mark.combinations

BATCH = 8
ROUNDS, VICTIMS = 12, 4


def write_for_ever(url, name, acknowledgements):
    """Store batches and note each in a file once it is acknowledged."""
    file = os.open(acknowledgements, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with ReplayBuffer(url) as buffer:
        for number in itertools.count():
            batch = f"{name}_{number}"
            assert buffer.store_batch(make_batch(batch, BATCH)).inserted == BATCH
            os.write(file, f"{batch}\n".encode())


def acknowledged_in(path):
    return path.read_text().split() if path.exists() else []


def write_until_told(url, name, enough):
    acknowledged = []
    with ReplayBuffer(url) as buffer:
        while not enough.is_set():
            batch = f"{name}_{len(acknowledged)}"
            assert buffer.store_batch(make_batch(batch, BATCH)).inserted == BATCH
            acknowledged.append(batch)
    return acknowledged


def kill_in_rounds(url, folder, chance):
    """Start and kill writers; return {writer: the batches it saw acknowledged}."""
    acknowledged = {}
    for turn in range(ROUNDS):
        files = {name: folder / name for name in (f"r{turn}v{n}" for n in range(VICTIMS))}
        with running(
            [(write_for_ever, url, name, file) for name, file in files.items()]
        ) as writers:
            for process, file in zip(writers.processes, files.values(), strict=True):
                target = chance.randint(1, 12)
                wait_until(
                    lambda: len(acknowledged_in(file)) >= target or not process.is_alive(),  # noqa: B023
                    "some batches",
                )
                time.sleep(chance.uniform(0, 0.004))  # any moment of a batch
                process.kill()
            for process in writers.processes:
                process.join(TIMEOUT_S)
            assert [process.exitcode for process in writers.processes] == [
                -signal.SIGKILL
            ] * VICTIMS
        acknowledged |= {name: acknowledged_in(file) for name, file in files.items()}
    return acknowledged


def check_log(url, acknowledged):
    """Check that the batches acknowledged, and at most the next one of each writer, were stored
    whole and once; return the log.
    """
    log = logged(url)
    ids = [id_ for _, id_ in log]
    assert len({seq for seq, _ in log}) == len(set(ids)) == len(ids), "something was stored twice"
    batches = batches_of(ids)
    assert {name: steps for name, steps in batches.items() if steps != list(range(BATCH))} == {}
    for writer, names in acknowledged.items():
        stored = [name for name in batches if name.startswith(f"{writer}_")]
        following = f"{writer}_{len(names)}"
        assert set(names) <= set(stored) <= {*names, following}
    return log


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("capacity", [None, 300])
@pytest.mark.parametrize("others", ["beside_one_that_goes_on", "and_nobody_is_left"])
def test_killed_writers_lose_no_acknowledged_batch(schema_url, tmp_path, capacity, others):
    ReplayBuffer(schema_url, max_capacity=capacity).close()
    log_inserts(schema_url)
    folder = tmp_path / "acknowledged"
    folder.mkdir()
    chance = random.Random(f"{capacity} {others}")
    enough = multiprocessing.get_context("fork").Event()
    bystanders = [(write_until_told, schema_url, "bystander", enough)]
    with running(bystanders if others == "beside_one_that_goes_on" else []) as bystander:
        acknowledged = kill_in_rounds(schema_url, folder, chance)
        enough.set()
        for names in bystander.results():
            acknowledged["bystander"] = names
    with ReplayBuffer(schema_url) as buffer:
        # The file opens again, and nobody waits for the lock of a dead writer.
        assert buffer.store_batch(make_batch("last_0", BATCH)).inserted == BATCH
        acknowledged["last"] = ["last_0"]
        log = check_log(schema_url, acknowledged)
        low = log[-1][0] - (capacity or log[-1][0])
        window = [(seq, id_) for seq, id_ in log if seq > low]
        assert held(schema_url) == window
        assert counts(schema_url, buffer) == {len(window)}
    if is_sqlite(schema_url):
        assert len(window) == stored_rows(schema_url) == (capacity or len(log))
        assert integrity(schema_url) == "ok"
