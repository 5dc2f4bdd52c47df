"""Slots of episodes are read, and change, in one moment."""

import pytest

from sqlbuffer.storage.extensions.slots.episode_slots import Slots
from sqlbuffer.storage.extensions.slots.slot_claims import SlotClaims


def counters(buffer):
    return buffer.num_episodes, len(buffer), buffer.episode_lens.tolist()


def test_steps_and_what_is_behind_them_are_read_of_one_moment(
    make_slots, reopen_slots, monkeypatch
):
    buffer = make_slots()
    buffer.store_episode(r=[1.0, 2.0])
    buffer.data["r"][0, 2:] = 3.0
    other, tails = reopen_slots(), Slots.tails

    def late(slots, connection, wanted):
        monkeypatch.undo()
        other.data["r"][0] = 9.0
        return tails(slots, connection, wanted)

    monkeypatch.setattr(Slots, "tails", late)
    assert buffer.data["r"][0].tolist() == [1, 2, 3, 3]
    assert buffer.data["r"][0].tolist() == [9, 9, 9, 9]


def test_length_counters_and_last_steps_change_together(make_slots, reopen_slots, monkeypatch):
    buffer, reader = make_slots(), reopen_slots(read_only=True)
    buffer.store(r=1.0)
    buffer.flush()
    buffer.store(r=2.0)

    def fail(*_: object) -> None:
        raise RuntimeError("the process dies here")

    monkeypatch.setattr(SlotClaims, "_move_on", fail)
    with pytest.raises(RuntimeError):
        buffer.advance_episode()
    assert counters(reader) == (0, 0, [0, 0, 0])
    monkeypatch.undo()
    buffer.flush()
    assert counters(reader) == (1, 1, [2, 0, 0])
    assert reader.data["r"][0].tolist() == [1, 2, -1, -1]
