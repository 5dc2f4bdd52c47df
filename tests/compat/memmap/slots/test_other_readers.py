"""Values that were replaced in place, as the readers of the core show them."""

from contextlib import closing

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat import memmap
from tests.support.processes import wait_until

CONFIG = {"max_episodes": 4, "max_timesteps": 3, "fields": {"r": "float", "x": ("float", 2)}}
WANTED = [(1.0, [0.0, 0.0]), (9.0, [2.0, 2.0]), (3.0, [3.0, 7.0]), (4.0, [4.0, 4.0])]


@pytest.fixture
def url(buffer_url):
    with closing(memmap.ReplayBuffer(buffer_url, name="slots", **CONFIG)) as buffer:
        buffer.store_episode(r=[1.0, 2.0], x=[[0.0, 0.0], [2.0, 2.0]])
        buffer.store_episode(r=[3.0, 4.0], x=[[3.0, 3.0], [4.0, 4.0]])
        replace(buffer)
    return buffer_url


def replace(buffer):
    buffer.data["r"][0, 1] = 9.0
    buffer.data["x"][1, 0, 1] = 7.0


def drawn(source):
    batch = source.sample_arrays(128)
    steps = zip(batch.info["seq"].tolist(), batch.r.tolist(), batch.x.tolist(), strict=True)
    return [step for _, *step in sorted({seq: (seq, *step) for seq, *step in steps}.values())]


def test_rows_and_draws_show_them(url):
    with ReplayBuffer(url, name="slots") as buffer:
        rows = [row.fields for row in buffer.get_all()]
        assert [(row["r"], row["x"].tolist()) for row in rows] == WANTED
        assert list(map(tuple, drawn(buffer))) == WANTED


def test_a_mirror_shows_them(url):
    with ReplayBuffer(url, name="slots") as buffer, buffer.mirror(refresh_s=0.02) as mirror:
        assert list(map(tuple, drawn(mirror))) == WANTED
        with closing(memmap.ReplayBuffer(url, name="slots", **CONFIG)) as slots:
            slots.data["r"][0, 1] = 8.0
        wait_until(lambda: list(map(tuple, drawn(mirror)))[1] == (8.0, [2.0, 2.0]), "it follows")
