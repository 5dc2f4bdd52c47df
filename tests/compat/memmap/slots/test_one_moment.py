"""Slots of episodes are read, and change, in one moment."""

import threading

import pytest

from sqlbuffer.compat.memmap.slots import BookChange, Moment


def counters(buffer):
    return buffer.num_episodes, len(buffer), buffer.episode_lens.tolist()


def test_steps_and_what_is_behind_them_are_read_of_one_moment(make, reopen, monkeypatch):
    buffer = make()
    buffer.store_episode(r=[1.0, 2.0])
    buffer.data["r"][0, 2:] = 3.0
    other, tails = reopen(), Moment.tails

    def late(moment, slots):
        monkeypatch.undo()
        thread = threading.Thread(target=other.data["r"].__setitem__, args=(0, 9.0))
        thread.start()
        thread.join()
        return tails(moment, slots)

    monkeypatch.setattr(Moment, "tails", late)
    assert buffer.data["r"][0].tolist() == [1, 2, 3, 3]
    assert buffer.data["r"][0].tolist() == [9, 9, 9, 9]


def test_length_counters_and_last_steps_change_together(make, reopen, monkeypatch):
    buffer, reader = make(), reopen(read_only=True)
    buffer.store(r=1.0)
    buffer.flush()
    buffer.store(r=2.0)

    def fail(*_: object) -> None:
        raise RuntimeError("the process dies here")

    monkeypatch.setattr(BookChange, "finish", fail)
    with pytest.raises(RuntimeError):
        buffer.advance_episode()
    assert counters(reader) == (0, 0, [0, 0, 0])
    monkeypatch.undo()
    buffer.flush()
    assert counters(reader) == (1, 1, [2, 0, 0])
    assert reader.data["r"][0].tolist() == [1, 2, -1, -1]
