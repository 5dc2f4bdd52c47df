"""The queue of steps that a recorded environment fills."""

from sqlbuffer import ReplayBuffer
from tests.recording.envs import Scripted
from tests.recording.test_single import buffer_for, take
from tests.storage.episodes.test_episode_writer import NEVER_S


def test_what_waits_is_bounded_when_every_step_ends_an_episode(sqlite_url):
    env, options = Scripted([(1, "terminated")]), {"flush_s": NEVER_S, "max_pending": 5}
    with buffer_for(sqlite_url, env, **options) as buffer, buffer.record(env) as recorded:
        recorded.reset()
        other = ReplayBuffer(sqlite_url, buffer.name)
        for n in range(1, 24):
            take(recorded, 1)
            assert n - len(other) <= 5
