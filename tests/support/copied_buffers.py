"""Buffers with something of all that a copy takes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, ReplayBuffer

TEXT = "naïve — 日本語 🙂 \"quoted\" \\ 'single' \n"
FIELDS: dict[str, Any] = {
    "obs": ("float32", (3,)),
    "tokens": ("int64", (-1,)),
    "big": ("uint64", ()),
    "word": ("U8", ()),
    "frame": ("uint8", (40, 120)),
    "level": {"dtype": "float64", "column": True},
}
Make = Callable[[str, str], ReplayBuffer]


def json_rows(url: str, name: str, **settings: Any) -> ReplayBuffer:
    """Return a wrapped ring of 40 JSON rows, with all that may belong to rows."""
    settings = {"max_capacity": 40, "priorities": True, "max_use": 9, **settings}
    buffer = ReplayBuffer(url, name, create=True, **settings)
    buffer.start_session("first")
    buffer.set_model_version(3)
    rows = []
    for i in range(50):
        state = {"text": TEXT, "i": i, "none": None, "nan": float("nan"), "large": 2**62 + i}
        if i % 7 == 0:
            state["array"] = np.arange(i, dtype=np.float32)
        experience = Experience(
            state=state,
            actions=[{"do": i}, None, float("inf")],
            reward_t=[None, float("nan"), float("-inf"), i / 3, -0.0][i % 5],
            adv_t=None if i % 2 else i / 7,
            v_t=float(i),
            messages=[{"role": "user", "content": TEXT}],
        )
        meta = ExpMeta(
            f"task-{i // 10}", f"name {i // 10}", f"agent-{i % 2}", i, 1000.5 + i, "before"
        )
        rows.append(DataRow(meta, experience, f"id-{i}"))
    buffer.store_batch(rows, model_version=2, session_id="first", priority=0.25)
    buffer.add(task_id="task-9", state={"blob": np.zeros(300_000)}, terminated=True)
    buffer.add(task_id="task-9", state={}, extra={"note": TEXT}, truncated=True)
    _change(buffer)
    buffer.start_session("second")
    buffer.set_clock(7)
    return buffer


def typed_steps(url: str, name: str, **settings: Any) -> ReplayBuffer:
    """Return a wrapped ring of typed steps, with episodes and all that may belong to steps."""
    settings = {"max_capacity": 90, "priorities": True, "max_use": 9, **settings}
    buffer = ReplayBuffer(
        url, name, create=True, fields=FIELDS, observation_fields=["obs"],
        meta_fields={"rank": ("int32", ())}, **settings,
    )  # fmt: skip
    buffer.start_session("first")
    buffer.set_model_version(3)
    for e in range(4):
        buffer.store_episode(
            columns(25, e), episode_id=f"épisode {e}", task_id=f"task-{e % 2}", model_version=e,
            session_id="first", final={"obs": np.full(3, e, np.float32)}, episode_reward=e / 3,
            rank=e,
        )  # fmt: skip
    buffer.extend(columns(20, 9), task_id="alone", agent_id="a", id=[f"own-{i}" for i in range(20)])
    episode = buffer.episode("task-open", episode_id="open", rank=5)
    for i in range(5):
        episode.append(**step(i), state={"text": TEXT, "nan": float("nan")}, extra={"i": i})
    buffer.flush()
    del episode
    _change(buffer)
    return buffer


def odd_steps(url: str, name: str) -> ReplayBuffer:
    """Return steps whose numbers are at the ends of their ranges, or none at all."""
    n, rng = 200, np.random.default_rng(1)
    fields = {
        "x": ("float32", (2,)),
        "level": {"dtype": "float32", "column": True},
        "flag": {"dtype": "bool", "column": True},
        "word": {"dtype": "U4", "column": True},
    }
    buffer = ReplayBuffer(url, name, create=True, fields=fields, priorities=True)
    odd = [np.inf, -np.inf, -0.0, np.nan]
    buffer.extend(
        {
            "x": rng.normal(size=(n, 2)).astype(np.float32),
            "level": np.resize(np.array(odd, np.float32), n),
            "flag": np.arange(n) % 2 == 0,
            "word": np.array(["ö🙂"] * n),
            "reward": np.array([*odd, *rng.normal(size=n - 4)]),
            "terminated": np.arange(n) % 7 == 0,
            "truncated": np.arange(n) % 11 == 0,
        },
        task_id=[f"t{i % 3}" for i in range(n)], step=rng.permutation(n), model_version=2**40,
        priority=np.linspace(0, 1e100, n),
    )  # fmt: skip
    rows = [
        DataRow(
            ExpMeta("task", TEXT, "a", i * i, 123.456789 + i * 1e-7, "before"),
            Experience(
                state={"a": 1e300, "b": 2**70, "c": [np.nan, -0.0]}, actions=[1, {"z": None}],
                reward_t=-np.inf, adv_t=np.nan, v_t=-0.0, extra={"k": "\u2028", "inf": np.inf},
            ),
            f"id-{i}",
            fields={
                "x": np.zeros(2, np.float32), "level": np.float32(-np.inf), "flag": True,
                "word": "abc",
            },
        )
        for i in range(20)
    ]  # fmt: skip
    buffer.store_batch(rows)
    return buffer


def columns(n: int, seed: int) -> dict[str, Any]:
    """Return n typed steps; some have no tokens at all, and some numbers are not finite."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(n, 3)).astype(np.float32)
    obs[:3, 0] = [np.nan, np.inf, -np.inf]
    return {
        "obs": obs,
        "tokens": [np.arange(i % 5, dtype=np.int64) for i in range(n)],
        "big": np.full(n, 2**63 + 5, np.uint64),
        "word": np.array([f"wört-{i}" for i in range(n)]),
        "frame": rng.integers(0, 255, (n, 40, 120), dtype=np.uint8),
        "level": np.array([*rng.normal(size=n - 3), np.nan, np.inf, -0.0]),
        "reward": rng.normal(size=n),
        "terminated": np.arange(n) == n - 1,
    }


def step(i: int) -> dict[str, Any]:
    """Return one typed step."""
    own = columns(4, i)
    return {name: own[name][3] for name in FIELDS}


def comparable(value: Any) -> Any:
    """Return what rows hold in a form in which NaN equals NaN, and keys have no order."""
    if isinstance(value, DataRow):
        return comparable(vars(value))
    if isinstance(value, (ExpMeta, Experience)):
        return type(value).__name__, comparable(vars(value))
    if isinstance(value, dict):
        return {name: comparable(own) for name, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [comparable(own) for own in value]
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    return repr(value)


def _change(buffer: ReplayBuffer) -> None:
    """Give steps labels, priorities, uses and reasons of quarantine, and delete some."""
    seqs = [row.seq for row in buffer.get_all()]
    buffer.annotate(seqs[5:9], reward=0.5, version=1)
    buffer.annotate(seqs[6:8], reward=1.5, extra={"judge": TEXT}, version=2)
    if buffer.alpha is not None:
        buffer.update_priorities(seqs[3:20], np.linspace(0.1, 30, 17))
    buffer.quarantine(seqs[10:13], reason=TEXT)
    buffer.delete(QueryBuilder().in_("seq", [seqs[1], seqs[15], seqs[16], seqs[-1]]).build())
    if not buffer.config.leases.enabled:
        buffer.sample(5)
