"""Actors of a local Ray cluster that share a buffer, for `test_ray`: prints what they saw as JSON.

A process of its own: what Ray leaves in one (threads, signal handlers) would meet later tests.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray

from sqlbuffer.compat.minestudio import FragmentMetadata, ReplayBufferInterface, SampleFragment

MIB = 2**20
CONFIG = {"max_chunks": 8, "max_reuse": 2, "max_staleness": 0, "fragments_per_chunk": 2}
WORKER = "worker-0"
TIMEOUT_S = 30.0


def fragment_of(fid: int) -> SampleFragment:
    return SampleFragment(
        obs={"image": np.full((4, 8, 8, 3), fid, np.uint8)},
        action={"camera": np.zeros((4, 2))},
        reward=np.full(4, fid, np.float32),
        next_done=np.zeros(4, bool),
        first=np.zeros(4, bool),
        in_state=[np.full((1, 16), fid, np.float32)],
        next_obs={"image": np.full((8, 8, 3), fid, np.uint8)},
        episode_uuids=["episode-0"] * 4,
        worker_uuid=WORKER,
        fid_in_worker=fid,
    )


@ray.remote(num_cpus=0)
class Rollout:
    """Adds fragments; the buffer comes to it with its arguments."""

    def use(self, buffer: ReplayBufferInterface) -> int:
        self.buffer, self.fid = buffer, 0
        return os.getpid()

    def add(self, n: int, session: str, version: int) -> None:
        for _ in range(n):
            metadata = FragmentMetadata(version, session, WORKER, self.fid)
            self.buffer.add_fragment(fragment_of(self.fid), metadata)
            self.fid += 1


@ray.remote(num_cpus=0)
class Trainer:
    """Rank 0; it attaches to a buffer by itself."""

    def attach(self, url: str) -> int:
        self.buffer = ReplayBufferInterface(url=url)
        return os.getpid()

    def publish(self, session: str, version: int) -> None:
        self.buffer.update_model_version(session, version)

    def fetch(self, n: int) -> int:
        return len(self.buffer.fetch_fragments(n, timeout=TIMEOUT_S))

    def prepared(self) -> list[list[Any]]:
        return plain(self.buffer)

    def rewards(self) -> list[list[float]]:
        return read_by(self.buffer, rank=0)


def plain(buffer: ReplayBufferInterface) -> list[list[Any]]:
    prepared = buffer.prepared_fragments()
    assert {index.worker_uuid for index, _ in prepared} == {WORKER}
    return [[index.fid_in_worker, id_] for index, id_ in prepared]


def read_by(buffer: ReplayBufferInterface, rank: int) -> list[list[float]]:
    """Return what a rank reads: the number of each fragment, and a reward."""
    read = []
    for index, fragment_id in buffer.prepared_fragments()[rank::2]:
        found = buffer.load_fragment(fragment_id)
        assert found.index == index
        read.append([found.fid_in_worker, float(found.reward[0])])
    return read


@contextmanager
def cluster() -> Iterator[None]:
    # Its sockets lie there, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 * MIB,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=folder,
        )
        try:
            yield
        finally:
            ray.shutdown()


def used(url: str, worker: Any, trainer: Any) -> dict[str, Any]:
    """Return what actors, and this process as rank 1, saw of the buffer of a URL."""
    buffer = ReplayBufferInterface({**CONFIG, "database_config": {"url": url}})
    pids = ray.get([worker.use.remote(buffer), trainer.attach.remote(url)])
    seen: dict[str, Any] = {"processes": len({os.getpid(), *pids})}
    ray.get(trainer.publish.remote("run-1", 1))
    ray.get(worker.add.remote(9, "run-1", 1))
    seen["fetched"] = ray.get(trainer.fetch.remote(8))
    seen["prepared"] = [plain(buffer), ray.get(trainer.prepared.remote())]
    seen["read"] = [ray.get(trainer.rewards.remote()), read_by(buffer, rank=1)]
    # All that there is is too old then; a fetch waits for what the worker adds meanwhile.
    ray.get(trainer.publish.remote("run-1", 2))
    fetching = trainer.fetch.remote(4)
    ray.get(worker.add.remote(5, "run-1", 2))
    seen["fetched_later"] = ray.get(fetching)
    seen["later"] = plain(buffer)
    buffer.close()
    return seen


def main() -> None:
    with cluster():
        worker, trainer = Rollout.remote(), Trainer.remote()
        seen = [used(url, worker, trainer) for url in sys.argv[1:]]
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
