"""Episodes whose steps have several versions are as old as their oldest step, or their newest."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import BufferConfigError, InsufficientDataError
from tests.support.sql import run

pytestmark = pytest.mark.combinations

LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}


@pytest.fixture(params=LAYOUTS)
def opened(buffer_url, request):
    buffers = []

    def make(**settings):
        buffers.append(ReplayBuffer(buffer_url, **LAYOUTS[request.param], **settings))
        return buffers[-1]

    yield make
    for buffer in buffers:
        buffer.close()


def play(buffer, key, versions):
    with buffer.episode("t", episode_id=key) as episode:
        for version in versions:
            values = {"obs" if buffer.fields else "state": 0.0}
            episode.append(**values, reward=1.0, model_version=version)
        if buffer.fields:
            episode.end(obs=0.0)


def fill(buffer):
    """Store a fresh, a mixed and an old episode of two steps each: seqs 1 to 6."""
    for key, versions in (("fresh", (5, 5)), ("mixed", (1, 5)), ("old", (1, 1))):
        play(buffer, key, versions)
    buffer.set_model_version(5)


def drawn(buffer):
    batches = [buffer.sample(1) for _ in range(60)]
    return {row.seq for batch in batches for row in batch}


@pytest.mark.parametrize(("of", "seqs"), [("oldest", {1, 2, 4}), ("newest", {1, 2, 3, 4})])
def test_steps_are_drawn_by_the_age_of_their_episode(opened, of, seqs):
    buffer = opened(max_staleness=1, staleness_of=of, keep_expired=True)
    fill(buffer)
    assert drawn(buffer) == seqs
    assert buffer.config.sampling.staleness_of == of
    if buffer.fields:
        arrays = [buffer.sample_arrays(1).info["seq"][0] for _ in range(60)]
        assert set(arrays) == seqs
        first = [buffer.sample_transitions(1).info["seq"][0] for _ in range(60)]
        assert set(first) == seqs
        trajectories = buffer.loader("trajectory", 4, epochs=1)
        keys = {key for batch in trajectories for key in batch.info["episode"]}
        assert keys == ({"fresh"} if of == "oldest" else {"fresh", "mixed"})


@pytest.mark.parametrize("of", ["oldest", "newest"])
def test_groups_are_leased_by_the_age_of_their_episodes(opened, of):
    buffer = opened(leases=True, max_use=1, max_staleness=1, staleness_of=of, keep_expired=True)
    fill(buffer)
    fresh = {"fresh"} if of == "oldest" else {"fresh", "mixed"}
    with buffer.lease(len(fresh), group_by="episode_id", timeout_s=0) as batch:
        assert {row.exp_meta.episode_id for row in batch} == fresh
    with (
        pytest.raises(InsufficientDataError, match="with rows more than 1 behind the clock"),
        buffer.lease(1, group_by="episode_id", timeout_s=0),
    ):
        pass
    ((reason,),) = run(buffer.url, "SELECT reason FROM v_queue")
    assert reason == "stale by 3 versions"


def test_expiry_keeps_what_may_still_be_drawn(opened):
    buffer = opened(max_staleness=1, staleness_of="newest")
    fill(buffer)
    assert buffer.expire().expired == 2
    assert [row.seq for row in buffer] == [1, 2, 3, 4]
    buffer.set_model_version(7)
    assert buffer.expire().expired == 4


def test_the_setting_is_stored_and_a_mirror_refuses_it(opened):
    buffer = opened(max_staleness=1, staleness_of="newest")
    with pytest.raises(BufferConfigError, match="stored with staleness_of='newest'"):
        opened(max_staleness=1, staleness_of="oldest")
    with pytest.raises(BufferConfigError, match="staleness_of"):
        opened(staleness_of="young")
    if buffer.fields:
        with pytest.raises(BufferConfigError, match="staleness_of='newest'"):
            buffer.mirror()
