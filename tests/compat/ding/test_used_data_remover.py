"""Items that leave are handed to what removes their files, where they are tracked."""

import pytest

from sqlbuffer.compat.ding import NaiveReplayBuffer


class Remover:
    def __init__(self):
        self.calls = []

    def start(self):
        self.calls.append("start")

    def close(self):
        self.calls.append("close")

    def add_used_data(self, item):
        self.calls.append(item["data_id"])


class Tracking(NaiveReplayBuffer):
    def _made_remover(self):
        return Remover()


@pytest.fixture
def buffer(place):
    config = {"replay_buffer_size": 3, "enable_track_used_data": True, **place}
    buffer = Tracking(config)
    yield buffer
    buffer.close()


def items(*numbers):
    return [{"data_id": number} for number in numbers]


def test_items_that_are_overwritten_are_used_the_oldest_first(buffer):
    calls = buffer._remover.calls
    buffer.start()
    for i in range(4):
        buffer.push({"data_id": i}, 0)
    assert calls == ["start", 0]
    buffer.push(items(4, 5), 0)
    assert calls == ["start", 0, 1, 2]


def test_items_of_a_list_that_is_too_long_are_used_at_once(buffer):
    buffer.push(items(0, 1), 0)
    buffer.push(items(*range(10, 15)), 0)
    assert sorted(buffer._remover.calls) == [0, 1, 10, 11]
    assert buffer.count() == 3


def test_clearing_uses_what_there_was_and_loading_nothing(buffer):
    calls = buffer._remover.calls
    buffer.push(items(0, 1), 0)
    buffer.clear()
    assert calls == [0, 1]
    buffer.push(items(2, 3), 0)
    state = buffer.state_dict()
    buffer.push(items(4), 0)
    buffer.load_state_dict(state)
    # What is loaded may be what there was.
    assert calls == [0, 1]
    buffer.push(items(5, 6), 0)
    assert calls == [0, 1, 2]


def test_closing_uses_what_a_private_buffer_holds_and_nothing_of_a_shared_one(buffer):
    buffer.push(items(0, 1), 0)
    calls = buffer._remover.calls
    buffer.close()
    buffer.close()
    assert calls == ["close"] * 2 if buffer.is_shared else [0, 1, "close", "close"]


def test_items_that_two_buffers_push_are_each_used_once(buffer_url):
    config = {"replay_buffer_size": 3, "enable_track_used_data": True, "url": buffer_url}
    first, second = Tracking(config), Tracking(config)
    for i in range(4):
        first.push(items(2 * i), 0)
        second.push(items(2 * i + 1), 0)
    assert sorted(first._remover.calls + second._remover.calls) == [0, 1, 2, 3, 4]
    first.close()
    second.close()


def test_nothing_is_handed_over_where_nothing_is_tracked(place):
    buffer = Tracking({"replay_buffer_size": 2, **place})
    buffer.start()
    buffer.push([1, 2, 3], 0)
    buffer.clear()
    assert buffer._remover is None
    buffer.close()
