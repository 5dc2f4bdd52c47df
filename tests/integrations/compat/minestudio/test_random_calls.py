"""Random calls beside a model: the ledger of the database is the model's all along."""

import numpy as np
import pytest

from sqlbuffer.compat.minestudio import FetchTimeoutError, ReplayBufferInterface
from tests.compat.minestudio.conftest import Make
from tests.compat.minestudio.fragments import chunks_of, indices, live_in_pool, send
from tests.compat.minestudio.model import Model
from tests.support.sql import run

WORKERS = ("a", "b", "c")
N_CALLS = 130


class Run:
    """A buffer and its model, and what workers and the trainer do to both."""

    def __init__(self, buffer: ReplayBufferInterface, model: Model, url: str, seed: int) -> None:
        self.buffer, self.model, self.url = buffer, model, url
        self.rng = np.random.default_rng(seed)
        self.next_fid = dict.fromkeys(WORKERS, 0)
        self.n_sessions = 0

    def call(self) -> None:
        calls = {"add": 0.66, "fetch": 0.18, "version": 0.07, "session": 0.03, "release": 0.06}
        getattr(self, self.rng.choice(list(calls), p=list(calls.values())))()

    def add(self) -> None:
        worker = str(self.rng.choice(WORKERS, p=[0.6, 0.3, 0.1]))
        fid = self.next_fid[worker] + int(self.rng.random() < 0.1)
        self.next_fid[worker] = fid + 1
        version = self.model.version - int(self.rng.choice([0, 0, 1, 2]))
        session = self.model.session if self.rng.random() < 0.95 else "elsewhere"
        send(self.buffer, worker, fid, version, session)
        self.model.add(worker, fid, version, session)

    def fetch(self) -> None:
        k = int(self.rng.integers(0, min(3, self.model.max_chunks) + 1))
        n = k * self.model.per_chunk
        if not self.model.can_fetch(k):
            with pytest.raises(FetchTimeoutError):
                self.buffer.fetch_fragments(n, timeout=0)
            return
        fetched = self.buffer.fetch_fragments(n, timeout=0)
        assert len(fetched) == n
        self.model.fetched(indices(fetched))

    def version(self) -> None:
        version = self.model.version + int(self.rng.choice([1, 1, 2, -1]))
        self.buffer.update_model_version(self.model.session, version)
        self.model.update(self.model.session, version)

    def session(self) -> None:
        self.n_sessions += 1
        self.buffer.update_model_version(f"s{self.n_sessions}", 1)
        self.model.update(f"s{self.n_sessions}", 1)

    def release(self) -> None:
        assert self.buffer.release_prepared() == self.model.release()

    def compare(self) -> None:
        buffer, model = self.buffer, self.model
        prepared = buffer.prepared_fragments()
        assert indices(prepared) == model.prepared
        held = run(self.url, "SELECT task_id, step FROM experiences")
        assert {(worker, fid) for worker, fid in held} == model.held()
        stored = chunks_of(self.url)
        live = {number: chunk for number, chunk in stored.items() if chunk["left"] is None}
        assert [(chunk["first_fid"], chunk["uses"]) for chunk in live.values()] == [
            (chunk.fragments[0][1], chunk.uses) for chunk in model.chunks
        ]
        assert live_in_pool(self.url) == list(live)
        stats = buffer.stats()
        counted = {name: stats[f"replay_buffer/{name}"] for name in model.left}
        assert counted == model.left
        assert stats["replay_buffer/dropped"] == model.dropped
        assert stats["replay_buffer/gaps"] == model.gaps


@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize(("per_chunk", "max_chunks"), [(1, 5), (3, 2)])
def test_random_calls_leave_the_same_ledger_as_a_model(
    make: Make, buffer_url: str, per_chunk: int, max_chunks: int
) -> None:
    buffer = make(max_chunks=max_chunks, max_reuse=2, fragments_per_chunk=per_chunk, seed=3)
    it = Run(buffer, Model(max_chunks, 1, 2, per_chunk), buffer_url, seed=3)
    for i in range(N_CALLS):
        it.call()
        if i % 3 == 0:
            it.compare()
    # None of the rules went untested.
    assert min(it.model.left.values()) > 0
    assert it.model.gaps
    assert it.model.dropped
