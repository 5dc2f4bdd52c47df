"""Other replay buffers, and ours beside them, behind the same few calls.

Each is used the way its documentation does, and imported when it is opened.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sqlbuffer import ReplayBuffer
from sqlbuffer.mirror.buffer_mirror import Mirror
from tests.benchmarks.arrays import FIELDS
from tests.benchmarks.bench import Bench

BATCH = 256
EPISODE = 1_000
N_STEP, GAMMA = 5, 0.99
NOT_INSTALLED = "not installed"
FROM_MIRROR = "from a mirror"

Columns = Mapping[str, Any]
Draws = Callable[[int], Iterator[Any]]  # given n, yields n batches
Store = Callable[[Any], None]


class PeerBuffer(Protocol):
    """What is measured of a buffer.

    Attributes:
        one: What stores one step at a time.
        many: What stores steps given as columns.
        lasting: What stores one step and returns when it outlives the process, by name.
        draws: What draws 256 transitions, by name; the one to be compared comes first.
        n_step_draws: What draws 256 n-step transitions, with their returns summed up.
    """

    one: str
    many: str
    lasting: dict[str, Store]
    draws: dict[str, Draws]
    n_step_draws: dict[str, Draws]

    def prepared(self, columns: Columns) -> Any:
        """Return the columns as `extend` takes them; not timed."""

    def prepared_steps(self, columns: Columns) -> list[Any]:
        """Return the columns as single steps; not timed."""

    def fill(self, columns: Columns, n_episodes: int) -> None:
        """Store the same episode n times, for all draws."""

    def extend(self, rows: Any) -> None:
        """Store steps given as columns, until draws find them."""

    def write(self, episodes: Sequence[Sequence[Any]]) -> None:
        """Store step by step, until draws find the last one."""

    def arrays(self, batch: Any) -> dict[str, Any]:
        """Return `obs`, `action`, `reward` and `next_obs` of a batch."""

    def close(self) -> None: ...


def name_of(bench: Bench) -> str:
    """Return what the tables call ours on a database."""
    return f"sqlbuffer, {bench.label}"


def repeated(draw: Callable[[], Any]) -> Draws:
    """Return what draws as often as it is told."""
    return lambda n: (draw() for _ in range(n))


def transitions(seed: int = 0) -> dict[str, Any]:
    """Return an episode as columns; the reward is the number of the step."""
    rng = np.random.default_rng(seed)
    seen = rng.standard_normal((EPISODE + 1, 17), np.float32)
    return {
        "obs": seen[:-1],
        "action": rng.standard_normal((EPISODE, 6), np.float32),
        "reward": np.arange(EPISODE, dtype=np.float32),
        "next_obs": seen[1:],
        "done": np.arange(EPISODE) == EPISODE - 1,
    }


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    n = len(next(iter(columns.values())))
    return [{name: values[i] for name, values in columns.items()} for i in range(n)]


def summed(rewards: Any) -> Any:
    """Return the discounted sums of rewards of shape (n, N_STEP)."""
    return rewards @ (np.float32(GAMMA) ** np.arange(N_STEP, dtype=np.float32))


class SQLBuffer:
    """sqlbuffer."""

    one, many = "`append`", "`extend`"

    def __init__(self, url: str, capacity: int) -> None:
        self._buffer = ReplayBuffer(url, create=True, fields=FIELDS, max_capacity=capacity)
        self.lasting: dict[str, Store] = {"`extend` of one row": self._extend_by_one}
        # Open while it is drawn from, so that no write pays for it.
        self._mirror: Mirror | None = None
        self.draws: dict[str, Draws] = {
            "`sample_arrays`": repeated(lambda: self._buffer.sample_arrays(BATCH)),
            FROM_MIRROR: self._from_mirror(lambda mirror: mirror.sample_arrays(BATCH)),
        }
        self.n_step_draws: dict[str, Draws] = {
            "`sample_transitions`": repeated(
                lambda: self._buffer.sample_transitions(BATCH, n_step=N_STEP, gamma=GAMMA)
            ),
            FROM_MIRROR: self._from_mirror(
                lambda mirror: mirror.sample_transitions(BATCH, n_step=N_STEP, gamma=GAMMA)
            ),
        }

    def _from_mirror(self, draw: Callable[[Mirror], Any]) -> Draws:
        def draws(n: int) -> Iterator[Any]:
            if self._mirror is None:
                self._mirror = self._buffer.mirror()
            mirror = self._mirror
            return (draw(mirror) for _ in range(n))

        return draws

    def _close_mirror(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None

    def prepared(self, columns: Columns) -> Any:
        kept = {name: values for name, values in columns.items() if name != "done"}
        return {**kept, "terminated": columns["done"]}

    def prepared_steps(self, columns: Columns) -> list[Any]:
        return rows_of(self.prepared(columns))

    def fill(self, columns: Columns, n_episodes: int) -> None:
        for _ in range(n_episodes):
            self._buffer.store_episode(self.prepared(columns))

    def extend(self, rows: Any) -> None:
        self._close_mirror()
        self._buffer.extend(rows)

    def write(self, episodes: Sequence[Sequence[Any]]) -> None:
        for steps in episodes:
            episode = self._buffer.episode()
            for step in steps:
                episode.append(**step)
            episode.finish()
        self._buffer.flush()

    def _extend_by_one(self, step: Any) -> None:
        self._buffer.extend({name: value[None] for name, value in step.items()})

    def arrays(self, batch: Any) -> dict[str, Any]:
        return dict(batch)

    def close(self) -> None:
        self._close_mirror()
        self._buffer.close()


class TorchRL:
    """torchrl.data.ReplayBuffer over one of its storages.

    n-step returns are made by a transform when steps are stored, so they need a second buffer.
    """

    one, many = "`add`", "`extend`"

    def __init__(self, storage: str, folder: Path, capacity: int) -> None:
        import torch
        import torchrl.data
        from torchrl.envs.transforms import MultiStepTransform

        # As quick with batches of this size, and steady: two threads that wait for each other on
        # a busy machine took thirty times as long.
        torch.set_num_threads(1)

        def buffer(name: str, transform: Any = None) -> Any:
            places = {"scratch_dir": folder / name} if "Memmap" in storage else {}
            made = getattr(torchrl.data, storage)(capacity, **places)
            return torchrl.data.ReplayBuffer(storage=made, batch_size=BATCH, transform=transform)

        self._buffer = buffer("one")
        self._n_step = buffer("n_step", MultiStepTransform(n_steps=N_STEP, gamma=GAMMA))
        self._dump = folder / "dump"
        self.lasting: dict[str, Store] = {"`add`, `dumps` of the whole buffer": self._dump_all}
        self.draws: dict[str, Draws] = {"`sample`": repeated(self._buffer.sample)}
        self.n_step_draws: dict[str, Draws] = {
            "`MultiStepTransform`": repeated(self._n_step.sample)
        }

    def prepared(self, columns: Columns) -> Any:
        from tensordict import TensorDict
        from torch import from_numpy

        n = len(columns["obs"])
        rest = {name: from_numpy(columns[name])[:, None] for name in ("reward", "done")}
        after = {"obs": from_numpy(columns["next_obs"]), **rest}
        return TensorDict(
            {
                "obs": from_numpy(columns["obs"]),
                "action": from_numpy(columns["action"]),
                "next": TensorDict({**after, "terminated": after["done"]}, [n]),
            },
            [n],
        )

    def prepared_steps(self, columns: Columns) -> list[Any]:
        return [step.clone() for step in self.prepared(columns)]

    def fill(self, columns: Columns, n_episodes: int) -> None:
        rows = self.prepared(columns)
        for _ in range(n_episodes):
            self._buffer.extend(rows)
            self._n_step.extend(rows.clone())

    def extend(self, rows: Any) -> None:
        self._buffer.extend(rows)

    def write(self, episodes: Sequence[Sequence[Any]]) -> None:
        for steps in episodes:
            for step in steps:
                self._buffer.add(step)

    def _dump_all(self, step: Any) -> None:
        self._buffer.add(step)
        self._buffer.dumps(self._dump)

    def arrays(self, batch: Any) -> dict[str, Any]:
        after = batch["next"]
        return {
            "obs": batch["obs"].numpy(),
            "action": batch["action"].numpy(),
            "reward": after["reward"].numpy()[:, 0],
            "next_obs": after["obs"].numpy(),
        }

    def close(self) -> None: ...


class Cpprb:
    """cpprb.ReplayBuffer; n-step returns are made when steps are stored, in a second buffer."""

    one, many = "`add`", "`add` of columns"

    def __init__(self, folder: Path, capacity: int) -> None:
        import cpprb

        wide = {name: {"shape": shape, "dtype": np.float32} for name, (_, shape) in FIELDS.items()}
        env = {**wide, "reward": {}, "done": {"dtype": bool}}
        returns = {"size": N_STEP, "gamma": GAMMA, "rew": "reward", "next": "next_obs"}
        self._buffer = cpprb.ReplayBuffer(capacity, env)
        self._n_step = cpprb.ReplayBuffer(capacity, env, Nstep=returns)
        self._file = str(folder / "transitions.npz")
        self.lasting: dict[str, Store] = {
            "`add`, `save_transitions` of the whole buffer": self._save_all
        }
        self.draws: dict[str, Draws] = {"`sample`": repeated(lambda: self._buffer.sample(BATCH))}
        self.n_step_draws: dict[str, Draws] = {
            "`Nstep=`": repeated(lambda: self._n_step.sample(BATCH))
        }

    def prepared(self, columns: Columns) -> Any:
        return dict(columns)

    def prepared_steps(self, columns: Columns) -> list[Any]:
        return rows_of(columns)

    def fill(self, columns: Columns, n_episodes: int) -> None:
        for _ in range(n_episodes):
            self.extend(columns)
            # A copy: it sums up the rewards in the caller's array.
            self._n_step.add(**{**columns, "reward": columns["reward"].copy()})
            self._n_step.on_episode_end()

    def extend(self, rows: Any) -> None:
        self._buffer.add(**rows)
        self._buffer.on_episode_end()

    def write(self, episodes: Sequence[Sequence[Any]]) -> None:
        for steps in episodes:
            for step in steps:
                self._buffer.add(**step)
            self._buffer.on_episode_end()

    def _save_all(self, step: Any) -> None:
        self._buffer.add(**step)
        self._buffer.save_transitions(self._file)

    def arrays(self, batch: Any) -> dict[str, Any]:
        return {**batch, "reward": batch["reward"][:, 0]}

    def close(self) -> None: ...


class Memmap:
    """memmap-replay-buffer, flushed where an episode ends; its own default is after each step."""

    one, many = "`store`", "`store_episode` and `flush`"

    def __init__(self, folder: Path, capacity: int) -> None:
        from memmap_replay_buffer import ReplayBuffer as MemmapBuffer

        self._buffer = MemmapBuffer(
            folder / "memmap",
            max_episodes=capacity // EPISODE,
            max_timesteps=EPISODE,
            fields={
                **{name: ("float", shape) for name, (_, shape) in FIELDS.items()},
                "reward": "float",
                "done": "bool",
            },
            circular=True,
            flush_every_store_step=0,
        )
        self.lasting: dict[str, Store] = {
            "`store`": lambda step: self._buffer.store(**step),
            "`store` and `flush` to the disk": self._store_and_flush,
        }
        one = self._batches(timestep_level=True)
        several = self._batches(
            n_steps=N_STEP,
            current_fields=("obs", "action"),
            next_fields=("obs",),
            sequence_fields=("reward",),
        )
        self.draws: dict[str, Draws] = {"`dataloader`": repeated(lambda: next(one))}

        def n_step() -> dict[str, Any]:
            batch = next(several)
            return {**batch, "reward": summed(batch["seq_reward"].numpy())}

        self.n_step_draws: dict[str, Draws] = {f"`dataloader(n_steps={N_STEP})`": repeated(n_step)}

    def _batches(self, **options: Any) -> Iterator[Any]:
        """Yield batches without end, of what is stored when the first is drawn."""
        loader = self._buffer.dataloader(BATCH, shuffle=True, drop_last=True, **options)
        while True:
            yield from loader

    def prepared(self, columns: Columns) -> Any:
        return dict(columns)

    def prepared_steps(self, columns: Columns) -> list[Any]:
        return rows_of(columns)

    def fill(self, columns: Columns, n_episodes: int) -> None:
        for _ in range(n_episodes):
            self._buffer.store_episode(**columns)
        self._buffer.flush()

    def extend(self, rows: Any) -> None:
        self._buffer.store_episode(**rows)
        self._buffer.flush()

    def write(self, episodes: Sequence[Sequence[Any]]) -> None:
        for steps in episodes:
            with self._buffer.one_episode():
                for step in steps:
                    self._buffer.store(**step)

    def _store_and_flush(self, step: Any) -> None:
        self._buffer.store(**step)
        self._buffer.flush()

    def arrays(self, batch: Any) -> dict[str, Any]:
        return {name: np.asarray(batch[name]) for name in ("obs", "action", "reward", "next_obs")}

    def close(self) -> None: ...
