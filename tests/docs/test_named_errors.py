"""Methods raise the errors that their docstrings name, where no test of the method shows it."""

import pytest

from sqlbuffer import BufferConfig, Experience, PrioritizedSampler, QueryBuilder, ReplayBuffer, mix
from sqlbuffer.compat import ding, memmap, minestudio
from sqlbuffer.errors import (
    ArgumentError,
    BufferConfigError,
    BufferNotFoundError,
    ConditionError,
    CopyError,
    FieldError,
)
from sqlbuffer.interchange import BufferStream
from sqlbuffer.monitoring import PrometheusCollector, TensorBoardMonitor, prometheus_text


@pytest.fixture
def buffer():
    with ReplayBuffer("sqlite://", fields={"obs": "float32"}) as opened:
        opened.extend({"obs": [1.0, 2.0]})
        yield opened


@pytest.mark.parametrize("call", ["abort", "finish", "end"])
def test_an_episode_ends_once(buffer, call):
    with buffer.episode() as episode:
        episode.append(obs=1.0)
    with pytest.raises(FieldError, match="has ended"):
        getattr(episode, call)()


@pytest.mark.parametrize(
    "call",
    [
        lambda: QueryBuilder().eq("step", b"1"),
        lambda: QueryBuilder().between("step", 0, {1: object()}),
        lambda: QueryBuilder().nested(QueryBuilder()),
    ],
)
def test_a_condition_is_refused_when_it_is_built(call):
    with pytest.raises(ConditionError):
        call()


def test_a_payload_that_cannot_be_stored_is_no_dict():
    with pytest.raises(FieldError):
        Experience(state=object()).to_dict()


def test_settings_are_checked_together():
    with pytest.raises(BufferConfigError):
        BufferConfig.of(max_capacity=2, min_size=5)
    with pytest.raises(FieldError):
        BufferConfig().replace({"fields": {"obs": "no dtype"}})


@pytest.mark.parametrize(
    "call", [ReplayBuffer.list, lambda url, **s: ReplayBuffer.drop(url, "a", **s)]
)
def test_seconds_of_retries_are_checked(call):
    with pytest.raises(ArgumentError, match="retry_s"):
        call("sqlite:///missing.db", retry_s=-1)


def test_a_session_that_cannot_be_stored_is_refused(buffer):
    with pytest.raises(FieldError, match="session_id"):
        buffer.set_model_version(1, session_id="")


def test_a_stream_has_pieces_inside_its_block(buffer):
    with pytest.raises(CopyError, match="inside `with`"):
        BufferStream(buffer).pieces(2)


def test_a_mirror_draws_while_it_is_open_and_by_priorities_that_it_has(buffer):
    with buffer.mirror() as mirror, pytest.raises(BufferConfigError, match="no priorities"):
        mirror.sample_arrays(1, sampler=PrioritizedSampler())
    with pytest.raises(BufferConfigError, match="closed"):
        mirror.sample_arrays(1)
    with pytest.raises(BufferConfigError, match="closed"):
        next(iter(mirror.loader("step", 1)))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"condition": {"x": 1}}, ConditionError),
        ({"fields": ["reward_tt"]}, FieldError),
        ({"fieldname_map": {"obs": "info"}}, FieldError),
    ],
)
def test_a_loader_of_a_mixture_checks_its_options(buffer, options, error):
    with pytest.raises(error):
        mix({buffer: 1}).loader("step", 1, **options)


def test_a_lease_is_renewed_for_some_time():
    with ReplayBuffer("sqlite://", leases=True) as leased:
        leased.add(state=1)
        with leased.lease(1) as batch, pytest.raises(ArgumentError, match="lease_s"):
            batch.renew(0)


class Writer:
    def add_scalar(self, *_):
        """Take a figure."""


def test_figures_of_a_dropped_buffer_are_refused(tmp_path):
    url = f"sqlite:///{tmp_path}/replay.db"
    with ReplayBuffer(url) as dropped:
        monitor, collector = TensorBoardMonitor(dropped, Writer()), PrometheusCollector(dropped)
        ReplayBuffer.drop(url, "default")
        for call in (monitor.write, collector.collect, lambda: prometheus_text(dropped)):
            with pytest.raises(BufferNotFoundError):
                call()


def test_a_read_only_folder_of_slots_is_not_cleared(tmp_path):
    fields = {"x": "float"}
    memmap.ReplayBuffer(tmp_path, max_episodes=1, max_timesteps=1, fields=fields).close()
    slots = memmap.ReplayBuffer.from_folder(tmp_path, read_only=True)
    for call in (slots.clear, slots.reset_):
        with pytest.raises(memmap.MemmapError, match="read-only"):
            call()
    slots.close()


def test_a_fragment_is_named_by_text():
    fragments = minestudio.FragmentStore(url="sqlite://")
    for wrong in (7, "\0"):
        with pytest.raises(minestudio.FragmentError):
            fragments.delete_fragment(wrong)
    fragments.close()


@pytest.mark.parametrize(
    ("state", "error"), [({}, ding.ReplayError), ({"data": [{"priority": "high"}]}, ding.ItemError)]
)
def test_a_state_of_a_ring_has_items(state, error):
    ring = ding.AdvancedReplayBuffer({"replay_buffer_size": 2})
    with pytest.raises(error):
        ring.load_state_dict(state)
    ring.close()
