"""Trainers that are killed between the lease, the step, the mark and the file, while players store:
as seen from the files of their models, every group was trained on exactly once.
"""

import json
import os
import random
import signal
import time

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import InsufficientDataError
from tests.support.processes import TIMEOUT_S, running, wait_until
from tests.support.sql import scalar

pytestmark = pytest.mark.combinations

N_GROUPS, SIZE, N_KILLS = 90, 3, 20
LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}
ASKED = {"group_by": "group_id", "group_size": SIZE}


def play(url):
    """Store groups of rollouts, now and then."""
    with ReplayBuffer(url, flush_s=0.001) as buffer:
        for group in range(N_GROUPS):
            for slot in range(SIZE):
                with buffer.episode("p", episode_id=f"{group}-{slot}", group_id=f"g{group}") as e:
                    for step in range(2):
                        e.append(**{"obs" if buffer.fields else "state": float(step)})
            time.sleep(0.01)


def started(buffer, consumer, file):
    """Return the model of the file, and bring the buffer to its state."""
    if not file.exists() and not buffer.checkpoints(consumer):
        buffer.checkpoint("start", consumer=consumer)
        return {"mark": "start", "n_marks": 0, "trained": []}
    model = json.loads(file.read_text()) if file.exists() else None
    model = model or {"mark": "start", "n_marks": 0, "trained": []}
    restored = buffer.restore(model["mark"], consumer=consumer)
    assert restored.n_missing == 0
    return model


def size_of(log):
    return log.stat().st_size if log.exists() else 0


def save(buffer, consumer, file, model):
    model["n_marks"] += 1
    model["mark"] = f"mark {model['n_marks']}"
    buffer.checkpoint(model["mark"], consumer=consumer)
    linger()
    file.with_suffix(".part").write_text(json.dumps(model))
    os.replace(file.with_suffix(".part"), file)


def linger():
    time.sleep(random.choice([0.0, 0.002, 0.01]))


def train(url, consumer, file, log, *, is_last=False):
    """Go on from the file, for ever or until nothing is left; note each batch in the log."""
    random.seed()
    noted = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with ReplayBuffer(url) as buffer:
        model = started(buffer, consumer, file)
        while True:
            try:
                batch = buffer.lease(
                    1, **ASKED, consumer=consumer, lease_s=600, timeout_s=0 if is_last else 60
                ).take()
            except InsufficientDataError:
                return save(buffer, consumer, file, model)
            os.write(noted, b"x")
            linger()
            assert len(batch) == 2 * SIZE
            model["trained"].append(batch[0].exp_meta.group_id)
            batch.ack()
            linger()
            if random.random() < 0.7:
                save(buffer, consumer, file, model)


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_group_is_trained_on_once_as_seen_from_the_files(schema_url, tmp_path, layout):
    ReplayBuffer(schema_url, leases=True, max_use=1, track_samples=True, **LAYOUTS[layout]).close()
    files = {name: tmp_path / f"{name}.json" for name in ("trainer-0", "trainer-1")}
    logs = {name: tmp_path / name for name in files}
    chance = random.Random(f"{layout}{schema_url[:6]}")
    with running([(play, schema_url)]) as playing:
        for _ in range(N_KILLS // 2):
            calls = [(train, schema_url, name, file, logs[name]) for name, file in files.items()]
            before = [size_of(log) for log in logs.values()]
            with running(calls) as training:
                for process, log, size in zip(
                    training.processes, logs.values(), before, strict=True
                ):
                    wait_until(lambda log=log, size=size: size_of(log) > size, "it trains")
                    time.sleep(chance.uniform(0.0, 0.1))
                    os.kill(process.pid, signal.SIGKILL)
                    process.join(TIMEOUT_S)
        wait_until(lambda: not playing.running, "all groups are stored")
    # In turn: one gives back what the other could train on.
    with ReplayBuffer(schema_url) as buffer:
        for name, file in files.items():
            started(buffer, name, file)
    for name, file in files.items():
        train(schema_url, name, file, logs[name], is_last=True)
    trained = [
        group for file in files.values() for group in json.loads(file.read_text())["trained"]
    ]
    assert sorted(trained) == sorted(f"g{group}" for group in range(N_GROUPS))
    # The log, without what was undone, has the same batches.
    logged = "SELECT count(DISTINCT batch_id) FROM v_samples WHERE"
    assert scalar(schema_url, f"{logged} NOT undone") == N_GROUPS
    assert scalar(schema_url, f"{logged} undone") > 0
    with ReplayBuffer(schema_url) as buffer:
        assert sum(buffer.delete_checkpoints(name) for name in files) == 4
        assert buffer.leases() == []
        assert len(buffer) == 0
