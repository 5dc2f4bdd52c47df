"""dm-reverb behind the calls of tests/benchmarks/peer_buffers.py.

Its client reads the tables of a server in the same process directly, without gRPC; both that and a
server in a process of its own are measured.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.peer_buffers import (
    BATCH,
    N_STEP,
    Columns,
    Draws,
    Store,
    repeated,
    rows_of,
    summed,
)

STEPS, SEQUENCES = "steps", "sequences"
NAMES = ("obs", "action", "reward", "next_obs", "done")
START_S, STOP_S = 120.0, 10.0


class Reverb:
    """A server with a table of single transitions, and one of n steps each, a tenth as large."""

    one = "`append` and `create_item`, then `flush`"
    many = "the same, one by one"

    def __init__(self, in_process: bool, folder: Path, capacity: int) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        import reverb

        self._stop: Callable[[], None]
        if in_process:
            server = _server(str(folder), capacity)
            port, self._stop = server.port, server.stop
        else:
            port, self._stop = _start(str(folder), capacity)
        self._address = f"localhost:{port}"
        self._client = reverb.Client(self._address)
        self._writer = self._client.trajectory_writer(num_keep_alive_refs=1)
        self.lasting: dict[str, Store] = {"`checkpoint` of the whole server": self._checkpoint}
        self.draws: dict[str, Draws] = {
            "`TrajectoryDataset`": partial(self._batches, reverb.TrajectoryDataset, STEPS),
            "`TimestepDataset`": partial(self._batches, reverb.TimestepDataset, STEPS),
            "`client.sample`": repeated(self._sample),
        }

        def n_step(n: int) -> Iterator[dict[str, Any]]:
            for batch in self._batches(reverb.TrajectoryDataset, SEQUENCES, n):
                yield {**batch, "reward": summed(batch["reward"].numpy())}

        self.n_step_draws: dict[str, Draws] = {f"`TrajectoryDataset` of {N_STEP} rewards": n_step}

    def _batches(self, kind: Any, table: str, n: int) -> Iterator[Any]:
        # In flight twice the batch, as its documentation advises. Without an end it would go on to
        # fetch in the background, and later draws would find dozens of batches waiting.
        dataset = kind.from_table_signature(
            self._address,
            table,
            max_in_flight_samples_per_worker=2 * BATCH,
            max_samples=n * BATCH,
        )
        for batch in dataset.batch(BATCH):
            yield batch.data

    def _sample(self) -> dict[str, Any]:
        drawn = self._client.sample(
            STEPS, BATCH, emit_timesteps=False, unpack_as_table_signature=True
        )
        samples = [sample.data for sample in drawn]
        return {name: np.stack([sample[name] for sample in samples]) for name in NAMES}

    def prepared(self, columns: Columns) -> Any:
        return rows_of(columns)

    def prepared_steps(self, columns: Columns) -> list[Any]:
        return rows_of(columns)

    def fill(self, columns: Columns, n_episodes: int) -> None:
        rows = rows_of(columns)
        for number in range(n_episodes):
            self.write([rows])
            if number < max(1, n_episodes // 10):
                self._write_sequences(rows)

    def _write_sequences(self, rows: Sequence[Any]) -> None:
        with self._client.trajectory_writer(num_keep_alive_refs=N_STEP) as writer:
            for t, row in enumerate(rows, 1):
                writer.append(row)
                if t >= N_STEP:
                    seen = writer.history
                    first = {name: seen[name][-N_STEP] for name in ("obs", "action")}
                    last = {name: seen[name][-1] for name in ("next_obs", "done")}
                    item = {**first, **last, "reward": seen["reward"][-N_STEP:]}
                    writer.create_item(SEQUENCES, 1.0, item)
            writer.end_episode()

    def extend(self, rows: Any) -> None:
        self.write([rows])

    def write(self, episodes: Sequence[Sequence[Any]]) -> None:
        writer = self._writer
        for steps in episodes:
            for step in steps:
                writer.append(step)
                seen = writer.history
                writer.create_item(STEPS, 1.0, {name: seen[name][-1] for name in NAMES})
            writer.end_episode()  # which flushes

    def _checkpoint(self, step: Any) -> None:
        self.write([[step]])
        self._client.checkpoint()

    def arrays(self, batch: Any) -> dict[str, Any]:
        return {name: np.asarray(batch[name]) for name in ("obs", "action", "reward", "next_obs")}

    def close(self) -> None:
        self._writer.close()
        self._stop()


def _server(folder: str, capacity: int) -> Any:
    import reverb
    import tensorflow as tf
    from reverb.platform.checkpointers_lib import DefaultCheckpointer

    def table(name: str, size: int, reward: tuple[int, ...]) -> Any:
        wide = {"obs": (17,), "action": (6,), "next_obs": (17,), "reward": reward}
        spec = {field: tf.TensorSpec(shape, tf.float32) for field, shape in wide.items()}
        return reverb.Table(
            name,
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=size,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature={**spec, "done": tf.TensorSpec((), tf.bool)},
        )

    tables = [table(STEPS, capacity, ()), table(SEQUENCES, capacity, (N_STEP,))]
    return reverb.Server(tables, checkpointer=DefaultCheckpointer(f"{folder}/checkpoints"))


def _start(folder: str, capacity: int) -> tuple[int, Callable[[], None]]:
    """Return the port of a server in a process of its own, and what ends it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, folder, capacity), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(START_S), "dm-reverb's server did not start"
    port = ours.recv()

    def stop() -> None:
        ours.close()
        process.join(STOP_S)
        process.kill()
        process.join()

    return port, stop


def _serve(pipe: Any, folder: str, capacity: int) -> None:
    """Serve until the other end of the pipe is closed, be it because its process was killed."""
    server = _server(folder, capacity)
    pipe.send(server.port)
    with suppress(EOFError):
        pipe.recv()
    server.stop()
