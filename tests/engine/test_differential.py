"""Whatever is stored, each engine makes the batches that a model in plain Python makes, key by key.

Kinds of fields x ways to store x late facts x calls x engines x databases, drawn at random.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from sqlbuffer import QueryBuilder
from sqlbuffer.errors import FieldError, InsufficientDataError
from tests.engine.naive import Item, Step
from tests.engine.worlds import KINDS, World, difference, items_of

pytestmark = pytest.mark.combinations

N_CALLS = 30
CONDITIONS: list[tuple[Any, Callable[[Step], bool]]] = [
    (None, lambda step: True),
    (QueryBuilder().eq("task_id", "t1"), lambda step: step.task == "t1"),
    (
        QueryBuilder().gt("reward", 0.5),
        lambda step: step.reward is not None and step.reward > 0.5,
    ),
    (QueryBuilder().lt("uid", 40), lambda step: step.uid < 40),
]


def forms(world: World) -> Iterator[tuple[str, dict[str, Any], Callable[[Step], Item | None]]]:
    """Yield a mode of loaders, its options, and what the model makes of a step."""
    model, rng = world.model, world.rng
    yield "step", {}, model.single
    frame = model.observations[0]
    stack = {frame: 3} if rng.random() < 0.4 and -1 not in model.fields[frame][1] else None
    own: dict[str, Any] = {"n_step": int(rng.choice([1, 2, 5])), "gamma": 0.5, "stack": stack}
    terminal = {"terminal_field": "done"} if world.kind == "done" else {}
    own |= terminal
    skip = {"skip_single": True} if not model.has_next else {}
    yield "transition", own | skip, lambda step: model.transition(step, **own)
    sequences = ("action", "reward", "adv_t", *(["obs_image"] if world.kind == "nested" else []))
    more = {"n_step": 3, "gamma": 0.9, "sequence_fields": sequences, **terminal}
    if "action" in model.fields:
        yield "n_step", more | skip, lambda step: model.transition(step, **more)
    laid: dict[str, Any] = {
        "length": int(rng.choice([1, 3])), "burn_in": int(rng.choice([0, 2])),
        "stride": int(rng.choice([1, 2])), "stack": stack,
    }  # fmt: skip
    yield "window", laid, lambda step: model.window(step, **laid)
    partial = bool(rng.random() < 0.5)
    yield (
        "trajectory",
        {"include_partial": partial},
        lambda step: model.trajectory(step, include_partial=partial),
    )


@contextmanager
def engines(world: World) -> Iterator[dict[str, Any]]:
    with world.buffer.mirror(refresh_s=3_600) as mirror:
        mirror.refresh()
        yield {"SQL": world.buffer, "mirror": mirror}


def check(world: World) -> None:
    """Compare every kind of batch of both engines with the model."""
    uids = {seq: uid for uid, seq in world.seqs().items()}
    assert set(uids.values()) == world.model.steps.keys()
    condition, matches = CONDITIONS[world.rng.integers(len(CONDITIONS))]
    world.model.asks = bool(world.rng.random() < 0.5)
    every = [*world.model.fields, "reward", "terminated", "adv_t", "v_t"]
    with engines(world) as sources:
        for mode, options, make in forms(world):
            if world.model.asks:
                flags = () if mode in ("transition", "n_step") else ("truncated",)
                options = {**options, "fields": [*every, *flags]}
            expected = world.model.items(make, matches)
            for engine, source in sources.items():
                what = f"{engine}, {mode}, {options}, {condition}"
                given = {**options, "condition": condition}
                passes = source.loader(mode, 5, epochs=1, shuffle=False, **given)
                found = {uids[seq]: item for seq, item in items_of(passes, world)}
                assert found.keys() == expected.keys(), what
                compare(expected, found, what)
                if expected:
                    drawn = next(iter(source.loader(mode, 16, replace=True, **given)))
                    compare(expected, {uids[s]: i for s, i in items_of([drawn], world)}, what)
                else:
                    with pytest.raises(InsufficientDataError):
                        next(iter(source.loader(mode, 4, replace=True, **given)))
        check_refusals(world, sources)
    check_rows(world, uids)


def compare(expected: dict[int, Item], found: dict[int, Item], what: str) -> None:
    for uid, item in found.items():
        differs = difference(expected[uid], item)
        assert differs is None, f"step {uid}, {what}: {differs}"


def check_refusals(world: World, sources: dict[str, Any]) -> None:
    """Transitions of steps without an episode are refused where one could be drawn."""
    model = world.model
    singles = [s for s in model.steps.values() if s.episode is None and model.may_be_drawn(s)]
    for source in sources.values():
        if singles and not model.has_next:
            with pytest.raises(FieldError):
                source.sample_transitions(4)


def check_rows(world: World, uids: dict[int, int]) -> None:
    """Rows show what the model has, in each reader."""
    buffer, steps = world.buffer, world.model.steps
    rows = list(buffer.get_all())
    assert [row.seq for row in rows] == sorted(uids)
    by_task = [row for task in ("t0", "t1", "t2") for row in buffer.get_by_task_id(task)]
    assert {row.seq for row in by_task} == set(uids)
    for row in [*rows, *by_task]:
        step, data, meta = steps[uids[row.seq or 0]], row.exp_data, row.exp_meta
        shown = (meta.task_id, meta.agent_id, meta.step, meta.model_version, meta.episode_id)
        key = step.episode and step.episode.key
        assert shown == (step.task, step.agent, step.step, step.version, key)
        values = (data.reward_t, data.adv_t, data.v_t, data.terminated, data.truncated)
        assert values == (step.reward, step.adv_t, step.v_t, step.terminated, step.truncated)
        assert difference(step.fields, dict(row.fields)) is None


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zstd": {"compression": "zstd"},
    "full": {"max_capacity": 60},
    "stale": {"max_staleness": 2, "keep_expired": True},
    "aged": {"max_age": "1h"},
}


def compare_engines(url: str, kind: str, name: str, seed: int, n_rounds: int) -> None:
    """Change a random buffer round by round, and compare its batches after each."""
    rng = np.random.default_rng([seed, *kind.encode()])
    world = World(url, f"{name} {seed}", kind, rng, **SETTINGS[name])
    with world.buffer:
        for _ in range(n_rounds):
            world.run(N_CALLS)
            check(world)


@pytest.mark.parametrize("kind", KINDS)
def test_each_engine_makes_the_batches_of_the_model(schema_url, kind):
    names = list(SETTINGS)
    compare_engines(schema_url, kind, names[list(KINDS).index(kind) % len(names)], 0, 1)


@pytest.mark.thorough
def test_each_engine_leaves_out_what_was_evicted_before_a_step(schema_url):
    """With this seed trajectories and windows begin right above the end of a full buffer."""
    compare_engines(schema_url, "small", "full", 2, 3)
