"""Whatever is done with a buffer that has typed fields, none of its steps is a row."""

import gymnasium
import numpy as np
import pytest

from sqlbuffer import FifoSampler, QueryBuilder, ReplayBuffer, fields_from_env, mix
from sqlbuffer.compat import memmap
from tests.support.sql import run, scalar

ROWS = (
    "SELECT b.name FROM buffers b JOIN experiences e ON e.buffer_id = b.id "
    "WHERE b.has_chunks = (1 = 1)"
)


def columns(n):
    return {"obs": np.ones((n, 4), np.float32), "action": np.ones(n, np.int64), "reward": [1.0] * n}


def write(buffer, url):
    """Write in every way there is, 20 steps and a recorded episode."""
    buffer.extend(columns(4), id=[*"abcd"], task_id=[*"xyxy"], model_version=3, session_id="s")
    buffer.extend(columns(4), id=[*"abcd"], task_id=[*"xyxy"], model_version=3, session_id="s")
    final = {"obs": np.zeros(4)}
    priority = None if buffer.alpha is None else 2.0
    buffer.store_episode(
        columns(6), final=final, model_version=3, session_id="s", priority=priority
    )
    with buffer.episode(model_version=3, session_id="s", level=1) as episode:
        for own in columns(7)["obs"]:
            episode.append(obs=own, action=0, reward=1.0, state={"note": 1})
    with buffer.record(gymnasium.make("CartPole-v1"), model_version=3, session_id="s") as env:
        env.reset(seed=1)
        while not env.step(1)[2]:
            pass


def change(buffer):
    buffer.annotate([1, 2], reward=0.5, extra={"judge": 1})
    buffer.quarantine([3])
    buffer.release([3])
    if buffer.alpha is not None:
        buffer.update_priorities([1, 2], [1.0, 2.0])
    buffer.start_session("s")
    buffer.set_model_version(3)


def read(buffer):
    """Read in every way there is."""
    typed = QueryBuilder().gte("exp_meta.model_version", 3).build()
    assert buffer.sample_arrays(8, condition=typed)["obs"].shape == (8, 4)
    assert buffer.sample_transitions(4, n_step=3, condition=typed, skip_single=True).n_rows == 4
    assert len(buffer.sample(4, sampler=FifoSampler(), condition=typed)) == 4
    assert buffer.sample_tasks(1)
    assert len(list(buffer)) == len(buffer) == buffer.size()
    for options in ({"mode": "window", "length": 3, "burn_in": 1}, {"mode": "trajectory"}):
        batches = buffer.loader(batch_size=2, epochs=1, condition=typed, **options)
        assert len(list(batches)) > 1
    both = mix({buffer: 0.5, ReplayBuffer(buffer.url): 0.5})
    assert both.sample_arrays(8, condition=typed).n_rows == 8


@pytest.mark.thorough
def test_no_typed_buffer_has_a_row_after_all_features(buffer_url):
    fields = fields_from_env(gymnasium.make("CartPole-v1"))
    kinds = {
        "default": {"priorities": True, "max_capacity": 500},
        "leased": {"leases": True, "max_use": 3, "max_staleness": 2},
        "tasks": {"evict_by": "task", "max_capacity": 30, "current_session_only": True},
        "episodes": {"max_episodes": 2},
    }
    for name, settings in kinds.items():
        with ReplayBuffer(buffer_url, name, **fields, **settings) as buffer:
            write(buffer, buffer_url)
            change(buffer)
            if name == "leased":
                with buffer.lease(3, order="fifo") as batch:
                    batch.renew()
            elif name == "default":
                read(buffer)
            buffer.expire()
            buffer.delete(QueryBuilder().eq("exp_meta.task_id", "x"))
            buffer.resize(12)
            assert len(buffer) == len(list(buffer)) == buffer.size() > 0
            run(buffer_url, f"DELETE FROM v_experiences WHERE buffer = '{name}' AND step = 3")
            assert len(buffer) == len(list(buffer)) == buffer.size() > 0
    slots = memmap.ReplayBuffer(buffer_url, 2, 3, {"s": ("float", 2), "r": "float"}, circular=True)
    for number in range(3):
        with slots.one_episode():
            slots.store(s=[number, 0.0], r=1.0)
        slots.data["r"][number % 2, 0] = 5.0
    assert slots.data["r"][0, 0] == 5.0
    slots.close()
    assert run(buffer_url, ROWS) == []
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == 0
