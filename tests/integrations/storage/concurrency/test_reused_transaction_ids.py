"""A server that crashes before a commit gives the transaction's id to another one: no acknowledged
batch is missing.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg

from sqlbuffer import ReplayBuffer
from tests.support.proxy import proxied
from tests.support.sql import run_outside_transaction
from tests.support.stepped_rows import make_row, steps_of

# Those of the transactions that are lost are among the next few.
IDS_TAKEN = 64
# A server on a busy disk recovers slowly.
PATIENCE_S = 300.0


def make_batch(task: str, steps: range) -> list:
    return [make_row(step, task=task, episode=task) for step in steps]


def store_others(buffer: ReplayBuffer) -> None:
    for n in range(3):
        buffer.store_batch(make_batch(f"other {n}", range(100, 110)))


def lease_others(buffer: ReplayBuffer) -> None:
    store_others(buffer)
    with buffer.lease(30):
        pass


# Buffers, and how rows leave them while a call does not know what became of its own.
CASES: dict[str, tuple[dict[str, object], Callable[[ReplayBuffer], object]]] = {
    "evicted": ({"max_capacity": 10}, store_others),
    "evicted by task": ({"max_capacity": 10, "evict_by": "task"}, store_others),
    "evicted by episode": ({"max_episodes": 2}, store_others),
    "deleted": ({}, ReplayBuffer.clear),
    "used up": ({"leases": True, "max_use": 1}, lease_others),
}


def test_a_batch_is_stored_although_its_transaction_id_was_committed_by_another(server):
    # The server writes its log at a commit, and not before.
    for setting in ("wal_writer_delay = '10s'", "wal_writer_flush_after = '1GB'"):
        run_outside_transaction(server.url, f"ALTER SYSTEM SET {setting}")
    server.kill()
    server.start()

    def crash() -> None:
        server.kill()
        server.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            for _ in range(IDS_TAKEN):
                connection.execute("SELECT pg_current_xact_id()")

    all_cut = threading.Barrier(len(CASES), action=crash)

    left = set()

    def cut(name: str) -> None:
        if name in left:  # the proxy may tell of both ends
            return
        left.add(name)
        all_cut.wait(PATIENCE_S)
        with ReplayBuffer(server.url, name=name) as others:
            CASES[name][1](others)

    with ExitStack() as stack:
        buffers = []
        for name, (options, _) in CASES.items():
            ReplayBuffer(server.url, name=name, create=True, **options).close()
            proxy = stack.enter_context(proxied(server.url))
            buffers.append(stack.enter_context(ReplayBuffer(proxy.url, name=name)))
            proxy.cuts, proxy.on_cut = ["before"], lambda name=name: cut(name)
        run_outside_transaction(server.url, "CHECKPOINT")
        executor = stack.enter_context(ThreadPoolExecutor(len(CASES)))
        batch = make_batch("mine", range(5))
        stored = list(executor.map(lambda buffer: buffer.store_batch(batch).inserted, buffers))
        held = [steps_of(buffer.get_by_task_id("mine")) for buffer in buffers]
    assert dict(zip(CASES, stored, strict=True)) == dict.fromkeys(CASES, 5)
    assert dict(zip(CASES, held, strict=True)) == {name: [0, 1, 2, 3, 4] for name in CASES}
