"""Fragments and their metadata, as rollout workers make them."""

from typing import Any

import numpy as np

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat.minestudio import (
    FragmentIndex,
    FragmentMetadata,
    ReplayBufferInterface,
    SampleFragment,
)

T = 4


def make_fragment(worker: str = "w", fid: int = 0, **changes: Any) -> SampleFragment:
    """Return a fragment of T steps that can be told from others."""
    rng = np.random.default_rng(fid)
    fields: dict[str, Any] = {
        "obs": {"image": rng.integers(0, 256, (T, 2, 2, 3), np.uint8)},
        "action": {"buttons": np.full((T, 1), fid), "camera": np.zeros((T, 1), np.int64)},
        "next_done": np.zeros(T, bool),
        "reward": np.full(T, fid, np.float32),
        "first": np.arange(T) == 0,
        "in_state": [np.full(3, fid, np.float32)],
        "worker_uuid": worker,
        "fid_in_worker": fid,
        "next_obs": {"image": np.zeros((2, 2, 3), np.uint8)},
        "episode_uuids": [f"{worker}-{fid}"] * T,
    }
    return SampleFragment(**{**fields, **changes})


def send(
    buffer: ReplayBufferInterface,
    worker: str,
    fid: int,
    version: int = -1,
    session: str = "",
    **changes: Any,
) -> None:
    """Add a fragment."""
    metadata = FragmentMetadata(version, session, worker, fid)
    buffer.add_fragment(make_fragment(worker, fid, **changes), metadata)


def send_all(
    buffer: ReplayBufferInterface, worker: str, fids: Any, version: int = -1, session: str = ""
) -> None:
    """Add fragments of a worker."""
    for fid in fids:
        send(buffer, worker, fid, version, session)


def chunks_of(url: str, name: str = "replay_buffer") -> dict[int, dict[str, Any]]:
    """Return the stored chunks by number, with their uses and the lists that hold them."""
    begin = "minestudio/chunk/"
    with ReplayBuffer(url, name) as buffer:
        found = buffer.documents.get_many(buffer.documents.keys(begin))
        chunks = {int(key.removeprefix(begin)): found[key].value for key in found}
        for block, numbers in blocks_of(buffer).items():
            for place in range(256):
                if (chunk := chunks.get(256 * block + place)) is not None:
                    chunk |= {part: int(numbers[part][place]) for part in numbers}
    return chunks


def blocks_of(buffer: ReplayBuffer) -> dict[int, dict[str, list[int]]]:
    """Return the numbers of the chunks of each block."""
    begin, found = "minestudio/block/", {}
    for key, document in buffer.documents.get_many(buffer.documents.keys(begin)).items():
        found[int(key.removeprefix(begin))] = {
            part: [int(each) for each in batched(document.value.get(part, "0" * 256))]
            for part in ("live", "uses", "held")
        }
    return found


def batched(digits: str) -> list[str]:
    """Return the numbers of a text that has 256 of the same width."""
    width = len(digits) // 256
    return [digits[i : i + width] for i in range(0, len(digits), width)]


def live_in_pool(url: str, name: str = "replay_buffer") -> list[int]:
    """Return the numbers of the chunks that may be fetched."""
    with ReplayBuffer(url, name) as buffer:
        pool = buffer.documents.get("minestudio/pool")
        assert pool is not None
        blocks = blocks_of(buffer)
        live = {block: sum(numbers["live"]) for block, numbers in blocks.items()}
        assert {block: n for block, n, _ in pool.value["live"]} == {
            b: n for b, n in live.items() if n
        }
        assert pool.value["n_chunks"] == sum(live.values())
        return [
            256 * block + place
            for block in sorted(blocks)
            for place in range(256)
            if blocks[block]["live"][place]
        ]


def change_document(url: str, key: str, **values: Any) -> None:
    """Change some values of a document."""
    with ReplayBuffer(url, "replay_buffer") as buffer:
        found = buffer.documents.get(f"minestudio/{key}")
        assert found is not None
        buffer.documents.put(found.key, {**found.value, **values})


def indices(fetched: list[tuple[FragmentIndex, str]]) -> list[tuple[str, int]]:
    """Return what fragments are, without their ids."""
    return [(index.worker_uuid, index.fid_in_worker) for index, _ in fetched]
