"""Steps as the collectors of TorchRL give them to a replay buffer."""

import torch
from tensordict import TensorDict

KINDS = ("flat", "nested", "pixels", "recurrent", "agents", "doubles")


class Envs:
    """Environments whose observations say which step they are of.

    Args:
        kind: What a step has.
        n: Number of environments; 0: one, without a dimension of its own.
        seed: Seed of the generator.
        with_ids: Whether steps have the trajectory that collectors write.
    """

    def __init__(self, kind, n=0, seed=0, *, with_ids=True):
        self.kind, self.n, self.with_ids = kind, n, with_ids
        self.rng = torch.Generator().manual_seed(seed)
        self.numbers = torch.arange(max(n, 1)) * 1_000_000
        self.ids, self.next_id = list(range(max(n, 1))), max(n, 1)

    def steps(self, length):
        """Return the next steps of all environments, with batch size (length,) or (n, length)."""
        rows = [
            torch.stack([self._step(env) for _ in range(length)]) for env in range(max(self.n, 1))
        ]
        return torch.stack(rows) if self.n else rows[0]

    def _step(self, env):
        number = int(self.numbers[env])
        terminated = self._random(1) < 0.1
        truncated = (self._random(1) < 0.05) & ~terminated
        before, after = self._observed(number), self._observed(number + 1)
        done = terminated | truncated
        more = {}
        if self.with_ids:
            more["collector"] = {"traj_ids": torch.tensor(self.ids[env])}
        flags = {
            name: torch.zeros(1, dtype=torch.bool) for name in ("done", "terminated", "truncated")
        }
        step = TensorDict({**before, **flags, **self._acted(), **more, "next": after})
        step["next"].update(
            {
                "reward": self._reward(),
                "done": done,
                "terminated": terminated,
                "truncated": truncated,
            }
        )
        self.numbers[env] += 1
        if done:
            self.numbers[env] += 10
            self.ids[env], self.next_id = self.next_id, self.next_id + 1
        if self.kind == "agents":
            for data in (step, step["next"]):
                data["agents"].batch_size = [3]
        return step

    def _random(self, *shape):
        return torch.rand(*shape, generator=self.rng)

    def _reward(self):
        if self.kind == "doubles":
            return self._random(1).double() / 3
        return self._random(1)

    def _observed(self, number):
        values = torch.sin(torch.arange(4) + number).float()
        if self.kind == "flat":
            return {"observation": values}
        if self.kind == "nested":
            return {
                "observation": {"position": values, "goal-1": {"x": torch.tensor([number])}},
                "step_count": torch.tensor([number]),
            }
        if self.kind == "pixels":
            frame = (torch.arange(2 * 5 * 5) * 7 + number) % 256
            return {"pixels": frame.to(torch.uint8).reshape(2, 5, 5)}
        if self.kind == "recurrent":
            return {"observation": values, "recurrent_state": {"h": values.half().reshape(2, 2)}}
        if self.kind == "agents":
            return {"agents": {"observation": values.repeat(3, 1), "mask": values[:3] > 0}}
        return {
            "observation": torch.where(values > 0.9, torch.nan, values).double(),
            "state": values,
        }

    def _acted(self):
        if self.kind == "agents":
            return {}
        if self.kind == "flat":
            return {"action": (self._random(3) > 0.5).long()}
        if self.kind == "doubles":
            return {
                "action": torch.complex(self._random(2), self._random(2)),
                "reward": -self._random(1),
            }
        return {
            "action": (self._random(()) * 9).to(torch.int32),
            "sample_log_prob": -self._random(()),
            "is_init": self._random(1) > 0.9,
        }


def assert_equal(ours, theirs):
    """Check keys, shapes, dtypes and every bit."""
    assert ours.batch_size == theirs.batch_size
    ours_keys, theirs_keys = (set(map(str, data.keys(True))) for data in (ours, theirs))
    assert ours_keys == theirs_keys
    for key in theirs.keys(True, True):
        one, other = ours.get(key), theirs.get(key)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), key
        assert one.numpy().tobytes() == other.numpy().tobytes(), key
    for key in theirs.keys(True):
        if hasattr(theirs.get(key), "batch_size"):
            assert ours.get(key).batch_size == theirs.get(key).batch_size, key
