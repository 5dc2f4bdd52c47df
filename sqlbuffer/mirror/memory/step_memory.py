"""The steps of a mirror in memory: a record for each step, and how the steps follow each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import (
    BARRED,
    ENDS,
    LAST,
    LINK,
    LIVE,
    NONE,
    TERMINATED,
    TRUNCATED,
    Arrays,
    Flags,
    Integers,
    as_float32,
    as_records,
    bytes_of,
    flags_of_ends,
    tested_run_lengths,
)
from sqlbuffer.encoding.blocks import expanded_rows
from sqlbuffer.encoding.field_copies import FieldCopies
from sqlbuffer.encoding.packing import Layout, with_lens
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import ON_REQUEST
from sqlbuffer.mirror.memory.episode_index import EpisodeIndex
from sqlbuffer.mirror.memory.priorities import StepPriorities
from sqlbuffer.mirror.memory.records import (
    AGENT,
    AT,
    EPISODE,
    FIRST_BYTES,
    HEAP,
    SEQ,
    SIZE,
    STEP,
    TASK,
    StoredFields,
    T,
    Tails,
    as_slice,
    field_bytes,
    flags_of,
    record_of,
    step_numbers_of,
)
from sqlbuffer.mirror.memory.tables import (
    BLOCK,
    Allocate,
    BlockMap,
    ChangedSlots,
    EpisodeTable,
    NameTable,
    has_tails,
    large_of,
    slot_shapes,
    zeroed,
)
from sqlbuffer.storage.chunks.slices import unpacked_rewards
from sqlbuffer.storage.following.state import ChunkRow, EpisodeState
from sqlbuffer.storage.marks import Marks, late_values
from sqlbuffer.storage.schema.expressions import listed


@dataclass(frozen=True)
class StepChanges:
    """Changes of a buffer's steps.

    Attributes:
        marks: What became of steps after they were stored, as it is now.
        released: Steps that no longer are.
        matching: Steps that are drawn, where others are not.
        unmatched: Steps that no longer are.
        episodes: Episodes as they are now.
        sessions: (number, id) of sessions that were not known yet.
        limits: The oldest model version that may be sampled, and the number of the only session;
            None: any.
    """

    marks: Marks = field(default_factory=Marks)
    released: Sequence[int] = ()
    matching: Sequence[int] = ()
    unmatched: Sequence[int] = ()
    episodes: Sequence[EpisodeState] = ()
    sessions: Sequence[tuple[int, str]] = ()
    limits: tuple[int | None, int | None] = (None, None)


_NO_VERSION = np.iinfo(np.int64).max
# Version, whether there is one, session, quarantine, and whether it is wanted.
LIMIT_BYTES = 8 + 1 + 4 + 1 + 1


class StepLimits:
    """The model version, the session and the quarantine of each step.

    Args:
        selects: Only steps that are marked as matching are drawn.

    Attributes:
        version: The model version of each step, int64.
        has_version: Whether it has one.
        session: Number of its session, -1 if it has none, int32.
        session_keys: The user's id of each session, by number.
        is_quarantined: Whether it is in quarantine.
        is_outside: Whether it is kept only for those around it, and not drawn.
        selects: Whether there are such steps.
        oldest: The oldest model version that may be sampled; None: any.
        only: The number of the only session that may be; None: any.
    """

    version: NDArray[np.int64]
    has_version: Flags
    session: NDArray[np.int32]
    is_quarantined: Flags
    is_outside: Flags

    def __init__(self, selects: bool = False) -> None:
        self.selects = selects
        self.session_keys: dict[int, str] = {}
        self.oldest: int | None = None
        self.only: int | None = None

    def use(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep what each step has in these arrays; see `slot_shapes`."""
        self.version, self.has_version = arrays["version"], arrays["has_version"]
        self.session, self.is_quarantined = arrays["session"], arrays["is_quarantined"]
        self.is_outside = arrays["is_outside"]

    def stage(self, chunks: Sequence[ChunkRow], target: Any, counts: Integers) -> None:
        """Note what new steps have.

        Args:
            chunks: Their chunks.
            target: Their slots.
            counts: Number of each.
        """
        versions = [_NO_VERSION if c.model_version is None else c.model_version for c in chunks]
        self.version[target] = np.repeat(versions, counts)
        self.has_version[target] = np.repeat([c.model_version is not None for c in chunks], counts)
        numbers = [NONE if c.session_id is None else c.session_id for c in chunks]
        self.session[target] = np.repeat(numbers, counts)
        self.is_quarantined[target], self.is_outside[target] = False, self.selects

    def name_sessions(self, keys: Sequence[tuple[int, str]]) -> None:
        """Take the users' ids of sessions, by number."""
        self.session_keys.update(keys)

    def are_barred(self, slots: Integers) -> Flags:
        """Return which steps may not be sampled."""
        barred: Flags = self.is_quarantined[slots]
        if self.oldest is not None:
            barred = barred | (self.version[slots] < self.oldest)
        if self.only is not None:
            sessions = self.session[slots]
            barred = barred | ((sessions != self.only) & (sessions != NONE))
        return barred


Gathered = tuple[Integers, NDArray[Any]]

_ON_REQUEST = frozenset(ON_REQUEST)


class StepMemory:
    """Steps in slots. New ones are put into free slots and become visible with `commit`.

    Args:
        layout: Layout of the bytes of chunks.
        n_slots: Number of steps that fit; rounded up to whole blocks.
        allocate: Function that makes the arrays with a place for each step.
        heap_bytes: Bytes for values of varying length.
        selects: Only steps that `commit` says match are drawn.

    Attributes:
        blocks: Map from numbers to slots.
        record: The dtype of a step's record.
        copies: Copies fields out of that.
        large: Large fields by name, of shape (n_slots, *shape).
        values: Advantages and values by name, of shape (n_slots,); NaN for none.
        tails: The values of varying length of each step; None without such fields.
        is_drawable: Whether a step may be drawn, of shape (n_slots,).
        changed: Slots that have changed.
        limits: Limits on the steps that may be sampled.
        episodes: The episodes.
        tasks, agents: Their names.
        low, high: Steps up to `low` have left, and `high` is the newest one.
        clock: The buffer's clock.
        n_live: Number of steps in the buffer.
        has_barred: Whether some steps were ever excluded from sampling.
        priorities: The priorities of the steps; None: the buffer has none.
    """

    def __init__(
        self,
        layout: Layout,
        n_slots: int,
        allocate: Allocate = zeroed,
        *,
        heap_bytes: int = FIRST_BYTES,
        selects: bool = False,
    ) -> None:
        self.layout, self.record = layout, record_of(layout)
        self.copies = FieldCopies(self.record)
        self._stored = StoredFields(layout)
        self.blocks = BlockMap(-(-n_slots // BLOCK))
        n = self.blocks.n_blocks * BLOCK
        self._allocate, self.limits = allocate, StepLimits(selects)
        self._use(allocate(slot_shapes(layout, n, heap_bytes)))
        self.tails = Tails(self._arrays) if has_tails(layout) else None
        self.episodes, self.tasks, self.agents = EpisodeTable(), NameTable(), NameTable()
        self.clock: int | None = None
        self.low, self.high, self.n_live, self.has_barred = 0, 0, 0, False
        self.priorities: StepPriorities | None = None
        self.changed = ChangedSlots(n)
        self._by_episode = EpisodeIndex(self)
        self._staged: list[Integers] = []
        self._staged_links: list[tuple[int, int]] = []

    @property
    def n_slots(self) -> int:
        """Number of steps that fit."""
        return len(self.is_drawable)

    @property
    def n_wanted(self) -> int:
        """Number of steps of the buffer, without those that a condition excludes from draws."""
        if not self.limits.selects:
            return self.n_live
        is_live = (self.links["flags"] & LIVE) != 0
        return int(np.count_nonzero(is_live & ~self.limits.is_outside))

    def has_episode(self, id_: int) -> bool:
        """Return whether steps of an episode are in memory."""
        return self.episodes.find(id_) != NONE

    def missing(self, seqs: Sequence[int]) -> list[int]:
        """Return those of some steps that are not in memory."""
        numbers = np.asarray(seqs, np.int64)
        held, _ = self._slots_of_those(numbers)
        missing: list[int] = np.delete(numbers, held).tolist()
        return missing

    def grow(self, n_slots: int) -> None:
        """Make room for more steps; copies everything."""
        self.blocks.n_blocks = -(-n_slots // BLOCK)
        n = self.blocks.n_blocks * BLOCK
        heap_bytes = 0 if self.tails is None else self.tails.next_bytes
        self.move(self._allocate(slot_shapes(self.layout, n, heap_bytes)))

    def move(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep the steps in other arrays, which are at least as long."""
        for name in self._arrays.keys() - {AT, SIZE, HEAP}:
            arrays[name][: self.n_slots] = self._arrays[name]
        if self.tails is not None:
            self.tails.move(arrays)
        self._use(arrays)

    def _use(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self._records, self._links = arrays["records"], arrays["links"]
        # numpy copies a structured record part by part; as plain bytes it is copied whole.
        self._record_bytes = as_records(self._records, bytes_of(self.record))
        self._plain_records = as_records(self._records, self.copies.plain)
        self._link_bytes = as_records(self._links, bytes_of(LINK))
        self.is_drawable = arrays["is_drawable"]
        self.limits.use(arrays)
        self.large = large_of(arrays)
        self.values = {name: arrays[name] for name in ON_REQUEST}

    @property
    def records(self) -> NDArray[Any]:
        """The records, of shape (n_slots,)."""
        return self._records.view(self.record)[:, 0]

    @property
    def links(self) -> NDArray[Any]:
        """Reward, flags, place and neighbours of each step, of shape (n_slots,)."""
        return self._links.view(LINK)[:, 0]

    def gathered(self, slots: Integers) -> Gathered:
        """Return copies of steps; see `StepTable.gathered`."""
        return slots, self.gathered_records(slots)

    def gathered_records(self, slots: Integers) -> NDArray[Any]:
        """Return copies of records, of shape (n,) and dtype `copies.plain`."""
        return as_records(self._record_bytes.take(slots), self.copies.plain)

    def gathered_field(self, name: str, slots: Integers) -> NDArray[Any]:
        """Return copies of a small field, of shape (n, *shape): half the time of whole records."""
        return self.copies.at(self._plain_records, slots, name)

    def gathered_links(self, slots: Integers) -> NDArray[Any]:
        """Return copies of links, of shape (n,)."""
        return as_records(self._link_bytes.take(slots), LINK)

    def run_lengths(self, slots: Integers, most: int, back: bool) -> Integers:
        """Return the lengths of runs of steps; see `StepTable.run_lengths`."""
        return tested_run_lengths(self, slots, most, back)

    def fields_of(
        self, steps: Gathered, names: Sequence[str], built_in: Sequence[str] = ()
    ) -> Arrays:
        """Return fields of gathered steps; see `StepTable.fields_of`."""
        slots, rows = steps
        if not _ON_REQUEST.isdisjoint(built_in):
            values = {name: self.values[name][slots] for name in ON_REQUEST if name in built_in}
            others = [name for name in built_in if name not in values]
            return self.fields_of(steps, names, others) | values
        if self.tails is None and not self.large:
            return self.copies.of(rows, (*names, *built_in))
        arrays, padded = Arrays(), Arrays()
        if self.tails is not None:
            padded = self.layout.tail_columns(rows, self.tails.of(slots), names)
        for name in names:
            if name in padded:
                arrays |= with_lens(padded, name)
            elif name in self.large:
                arrays[name] = self.large[name].take(slots, axis=0)
            else:
                arrays |= self.copies.of(rows, [name])
        return arrays | self.copies.of(rows, built_in)

    def fields_at(self, slots: Integers, names: Sequence[str]) -> Arrays:
        """Return fields of steps in slots; see `StepTable.fields_at`."""
        large = self.large
        if self.tails is not None or len([name for name in names if name not in large]) > 1:
            return self.fields_of(self.gathered(slots), names)
        return {
            name: large[name].take(slots, axis=0)
            if name in large
            else self.gathered_field(name, slots)
            for name in names
        }

    def episodes_of(self, steps: Gathered) -> Integers:
        """Return the number of the episode of gathered steps; see `StepTable.episodes_of`."""
        episodes: Integers = steps[1][EPISODE]
        return episodes

    def info_of(self, steps: Gathered, with_place: bool) -> Callable[[], Arrays]:
        """Return a function that makes the info of a batch; see `StepTable.info_of`."""
        _, rows = steps
        tasks, agents = self.tasks.names, self.agents.names
        keys = self.episodes.keys_of(rows[EPISODE]) if with_place else None

        def made() -> "Arrays":
            info = {
                "seq": rows[SEQ].copy(),
                "task_id": tasks.take(rows[TASK]),
                "agent_id": agents.take(rows[AGENT]),
                "step": rows[STEP].copy(),
            }
            if keys is not None:
                info |= {"episode": keys(), "t": rows[T].astype(np.int64)}
            return info

        return made

    def check_kept(self, names: Sequence[str]) -> None:
        """Raise FieldError where a mirror does not keep a field."""
        for name in names:
            if name not in self.layout.specs:
                raise FieldError(
                    f"the mirror was opened without field {name!r}; add it to fields=[...]"
                )

    def at(self, index: Integers) -> "StepsInSlots":
        """Return the steps in some slots; see `StepTable.at`."""
        return StepsInSlots(self, index)

    def seqs_of(self, slots: Integers) -> Integers:
        """Return the numbers of steps; see `StepTable.seqs_of`."""
        seqs: Integers = self.records[SEQ][slots]
        return seqs

    def steps_at(self, slots: Integers, ts: Integers) -> tuple["StepMemory", Integers]:
        """Return steps at places of the episodes of other steps; see `StepTable.steps_at`."""
        links = self.gathered_links(slots)
        steps = (slots + (ts - links["t"])).clip(0, self.n_slots - 1)
        # Mostly steps that follow each other are next to each other.
        near = self.gathered_links(steps)
        is_there = (near["episode"] == links["episode"]) & (near["t"] == ts)
        is_there &= (near["flags"] & LIVE) != 0
        if not is_there.all():
            far = np.flatnonzero(~is_there)
            steps[far] = self._by_episode.slots_of(links["episode"][far], ts[far])
        return self, steps

    def episode_steps(self, slots: Integers) -> tuple["StepMemory", list[Integers]]:
        """Return all steps of the episodes of some steps; see `StepTable.episode_steps`."""
        numbers = self.gathered_links(slots)["episode"].tolist()
        return self, [self._by_episode.steps_of(number) for number in numbers]

    def stage(self, chunks: Sequence[ChunkRow]) -> bool:
        """Put the steps of chunks into free slots; False: there are too few, nothing is done.

        Raises:
            FieldError: A step was not written with the buffer's fields, or is damaged.
        """
        if not chunks:
            return True
        counts = np.array([chunk.n_steps for chunk in chunks], np.int64)
        ends = np.cumsum(counts)
        places = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        seqs = np.repeat([chunk.first_seq for chunk in chunks], counts) + places
        heads, tails = field_bytes(self.layout, chunks)
        if self.tails is not None and not self.tails.has_room(sum(map(len, tails or ()))):
            return False
        added = self.blocks.add(seqs)
        if added is None:
            return False
        links, records = self.links, self.records
        links[added] = np.array((0, NONE, NONE, NONE, NONE, 0), LINK)
        slots = self.blocks.slots_of(seqs)
        target = as_slice(slots)
        self._stored.put(heads, len(seqs), target, self._records, self.large)
        if self.tails is not None and tails is not None:
            self.tails.put(target, tails)
        records[SEQ][target] = seqs
        records[STEP][target] = step_numbers_of(chunks, counts, ends, places)
        records[TASK][target] = np.repeat(
            [self.tasks.add(c.task_id, c.n_steps) for c in chunks], counts
        )
        agents = [self.agents.add(c.agent_id, c.n_steps) for c in chunks]
        records[AGENT][target] = np.repeat(agents, counts)
        flags = np.frombuffer(b"".join(map(flags_of, chunks)), np.uint8)
        records["terminated"][target] = (flags & TERMINATED).astype(bool)
        records["truncated"][target] = (flags & TRUNCATED).astype(bool)
        links["flags"][target] = flags
        rewards = unpacked_rewards([c.rewards for c in chunks], [c.n_steps for c in chunks])
        links["reward"][target] = rewards
        records["reward"][target] = as_float32(rewards)
        for name in ON_REQUEST:
            self._stage_values(name, chunks, target, ends)
        self.limits.stage(chunks, target, counts)
        self._stage_episodes(chunks, slots, target, counts, places)
        self._staged.append(slots)
        return True

    def _stage_values(
        self, name: str, chunks: Sequence[ChunkRow], target: Any, ends: Integers
    ) -> None:
        """Put advantages, or values, of the steps of chunks into their slots."""
        of_chunks = [getattr(chunk, name) for chunk in chunks]
        values = np.full(ends[-1], np.nan, np.float32)
        if any(of_chunk is not None for of_chunk in of_chunks):
            for chunk, chunk_values, end in zip(chunks, of_chunks, ends.tolist(), strict=True):
                if chunk_values is not None:
                    stored = np.array(listed(chunk_values), np.float64)
                    values[end - chunk.n_steps : end] = as_float32(stored)
        self.values[name][target] = values

    def _stage_episodes(
        self,
        chunks: Sequence[ChunkRow],
        slots: Integers,
        target: Any,
        counts: Integers,
        places: Integers,
    ) -> None:
        """Note the place of steps in their episodes, and which step follows which."""
        links, episodes = self.links, self.episodes
        chunk_episodes = [NONE if c.t is None else episodes.number(c.episode_id) for c in chunks]
        numbers = np.repeat(np.array(chunk_episodes, np.int32), counts)
        ts = np.repeat([c.t or 0 for c in chunks], counts) + places
        links["episode"][target] = self.records[EPISODE][target] = numbers
        links["t"][target] = self.records[T][target] = np.where(numbers == NONE, NONE, ts)
        in_episode = numbers != NONE
        has_before = in_episode & (places > 0)
        links["prev"][target] = np.where(has_before, np.roll(slots, 1), NONE)
        links["next"][target] = np.where(np.roll(has_before, -1), np.roll(slots, -1), NONE)
        ends = np.cumsum(counts)
        for chunk, number, end in zip(chunks, chunk_episodes, ends.tolist(), strict=True):
            if number != NONE:
                first, last = int(slots[end - chunk.n_steps]), int(slots[end - 1])
                self._stage_neighbours(number, chunk.t or 0, chunk.n_steps, first, last)

    def _stage_neighbours(self, number: int, t: int, n: int, first: int, last: int) -> None:
        """Note which steps are before and after a chunk: n steps of an episode from its place t on,
        the first and the last of them in these slots.
        """
        episodes = self.episodes
        episodes.n_steps[number] += n
        newest_t = int(episodes.last_t[number])
        if t and newest_t != NONE:
            is_next = newest_t == t - 1
            before = int(episodes.last_slot[number]) if is_next else self._find(number, t - 1)
            if before != NONE:
                self._staged_links.append((before, first))
        if t + n - 1 > newest_t:
            episodes.last_slot[number], episodes.last_t[number] = last, t + n - 1
        else:
            after = self._find(number, t + n)
            if after != NONE:
                self._staged_links.append((last, after))

    def _find(self, episode: int, t: int) -> int:
        """Search all slots for a step of an episode; return -1 if it is not in memory."""
        links = self.links[: self.blocks.n_used]
        slots = np.flatnonzero((links["episode"] == episode) & (links["t"] == t))
        return int(slots[-1]) if len(slots) else NONE

    def commit(self, low: int, changes: StepChanges) -> None:
        """Make the staged steps visible, together with other changes.

        Args:
            low: Steps up to this number have left.
            changes: Changes of the steps.
        """
        changed, limited = self._show_staged(low), self.limits
        marks = changes.marks
        gone = np.unique(self._known(marks.deleted))
        self._remove(gone)
        self._replace(marks)
        self._relabel(marks)
        for seqs, flags, value in (
            (marks.quarantined, limited.is_quarantined, True),
            (changes.released, limited.is_quarantined, False),
            (changes.matching, limited.is_outside, False),
            (changes.unmatched, limited.is_outside, True),
        ):
            if len(seqs):
                moved = self._known(seqs)
                flags[moved] = value
                changed.append(moved)
        limited.name_sessions(changes.sessions)
        if changes.limits != (limited.oldest, limited.only):
            limited.oldest, limited.only = changes.limits
            changed = [np.arange(self.blocks.n_used)]
        for slots in changed:
            self._update_drawable(slots)
        self._mark_ends(changes.episodes)
        self._evict(low, gone)

    def make_room(self, low: int) -> None:
        """Make staged steps visible, and free the slots of steps up to a number."""
        list(map(self._update_drawable, self._show_staged(low)))
        self._evict(low, np.zeros(0, np.int64))

    def _show_staged(self, low: int) -> list[Integers]:
        """Make staged steps visible; return their slots."""
        links, shown = self.links, self._staged
        for slots in shown:
            is_live = self.records[SEQ][slots] > low
            links["flags"][slots[is_live]] |= np.uint8(LIVE)
            self.n_live += int(is_live.sum())
        for before, after in self._staged_links:
            links["next"][before], links["prev"][after] = after, before
            links["flags"][before] &= np.uint8(255 - LAST)  # the episode was continued
        self.changed.add(np.array([before for before, _ in self._staged_links], np.int64))
        self._staged, self._staged_links = [], []
        return shown

    def _known(self, seqs: Sequence[int]) -> Integers:
        """Return the slots of those steps that are in memory."""
        return self._slots_of_those(np.asarray(seqs, np.int64))[1]

    def _remove(self, slots: Integers) -> None:
        flags = self.links["flags"]
        self.n_live -= int(((flags[slots] & LIVE) != 0).sum())
        flags[slots] &= np.uint8(255 - LIVE)
        self.is_drawable[slots] = False
        self.changed.add(slots)

    def _replace(self, marks: Marks) -> None:
        """Put values that were replaced in place into the steps; their fields have fixed sizes."""
        for number, block, reward, *ends in marks.replaced:
            slots = self._known([number])
            if not len(slots):
                continue
            (row,) = expanded_rows(self.layout, [block], [0], [number])
            self._stored.put(row, 1, slots, self._records, self.large)
            self.links["reward"][slots] = np.nan if reward is None else reward
            self.records["reward"][slots] = as_float32(self.links["reward"][slots])
            kept = self.links["flags"][slots] & np.uint8(255 - ENDS)
            self.links["flags"][slots] = kept | np.uint8(flags_of_ends(*ends))
            for name, is_end in zip(("terminated", "truncated"), ends, strict=True):
                self.records[name][slots] = bool(is_end)
            self.changed.add(slots)

    def _relabel(self, marks: Marks) -> None:
        late = late_values(marks.labels, self.layout.specs, self._slots_of_those)
        for name, (slots, reals) in late.reals.items():
            if name == "reward":
                self.links["reward"][slots] = reals
                self.records["reward"][slots] = as_float32(reals)
                self.changed.add(slots)
            else:
                self.values[name][slots] = as_float32(reals)
        for name, (slots, values) in late.fields.items():
            self.records[name][slots] = values
            self.changed.add(slots)

    def _slots_of_those(self, numbers: Integers) -> tuple[Integers, Integers]:
        """Return which steps are in memory, and their slots; see `late_values`."""
        slots = self.blocks.slots_of(numbers)
        which = np.flatnonzero((slots != NONE) & (self.records[SEQ][slots] == numbers))
        return which, slots[which]

    def _update_drawable(self, slots: Integers) -> None:
        """Find out which steps may be sampled."""
        is_barred = self.limits.are_barred(slots)
        self.has_barred |= bool(is_barred.any())
        flags = self.links["flags"][slots] & np.uint8(255 - BARRED)
        flags |= np.where(is_barred, np.uint8(BARRED), np.uint8(0))
        self.links["flags"][slots] = flags
        is_eligible = (flags & (LIVE | BARRED)) == LIVE
        self.is_drawable[slots] = is_eligible & ~self.limits.is_outside[slots]
        self.changed.add(slots)

    def _mark_ends(self, states: Sequence[EpisodeState]) -> None:
        """Apply the states of episodes, and mark the last steps of those that have ended."""
        links, episodes = self.links, self.episodes
        known = episodes.update(states)
        self.changed.add(episodes.last_slot[[n for n in known if episodes.last_slot[n] != NONE]])
        for number in known:
            last = int(episodes.last_slot[number])
            if last != NONE and episodes.length[number] == episodes.last_t[number] + 1:
                links["flags"][last] |= np.uint8(LAST)
            elif last != NONE:
                links["flags"][last] &= np.uint8(255 - LAST)

    def _evict(self, low: int, touched: Integers) -> None:
        """Remove the steps up to a number, and free the blocks without a step."""
        links, records = self.links, self.records
        numbers = self.blocks.numbers()
        numbers = numbers[numbers * BLOCK <= low]
        if len(touched):
            numbers = np.union1d(numbers, records[SEQ][touched] // BLOCK)
        if not len(numbers):
            return
        slots = self.blocks.slots_in(numbers)
        is_live = (links["flags"][slots] & LIVE) != 0
        has_left = is_live & (records[SEQ][slots] <= low)
        self._remove(slots[has_left])
        is_empty = ~(is_live & ~has_left).any(axis=1)
        if is_empty.any():
            self._free(numbers[is_empty], slots[is_empty].reshape(-1))

    def _free(self, numbers: Integers, slots: Integers) -> None:
        links, records, episodes = self.links, self.records, self.episodes
        for this, other in (("next", "prev"), ("prev", "next")):
            neighbours = links[this][slots]
            neighbours = neighbours[neighbours != NONE]
            links[other][neighbours] = NONE
            self.changed.add(neighbours.astype(np.int64))
        episode_numbers = links["episode"][slots]
        episode_numbers = episode_numbers[episode_numbers != NONE]
        np.subtract.at(episodes.n_steps, episode_numbers, 1)
        distinct = np.unique(episode_numbers)
        is_lost = np.isin(episodes.last_slot[distinct], slots)
        episodes.last_slot[distinct[is_lost]] = NONE
        episodes.forget(distinct)
        written = slots[records[SEQ][slots] != 0]
        self.tasks.drop(records[TASK][written].astype(np.int64))
        self.agents.drop(records[AGENT][written].astype(np.int64))
        records[SEQ][slots] = 0
        if self.tails is not None:
            self.tails.drop(slots)
        links[slots] = np.array((0, NONE, NONE, NONE, NONE, 0), LINK)
        self.blocks.free(numbers)


class StepsInSlots:
    """Steps in slots of which some have no step; see `StepsAt`.

    Args:
        memory: The steps.
        index: Their slots, of any shape; -1 for a missing step.
    """

    def __init__(self, memory: StepMemory, index: Integers) -> None:
        self._memory, self._shape = memory, index.shape
        self._slots = index.reshape(-1)
        self._is_missing = self._slots == NONE
        self._has_missing = np.count_nonzero(self._is_missing) > 0
        self._at = np.maximum(self._slots, 0) if self._has_missing else self._slots

    @cached_property
    def _rows(self) -> NDArray[Any]:
        return self._memory.gathered_records(self._at)

    def fields(self, names: Sequence[str]) -> Arrays:
        """Return declared fields; see `StepsAt.fields`.

        Raises:
            FieldError: The mirror does not keep one of them.
        """
        memory = self._memory
        memory.check_kept(names)
        arrays: Arrays = {}
        padded = self._padded(names)
        for name in names:
            if name in padded:
                arrays |= {key: self._shaped(v) for key, v in with_lens(padded, name).items()}
            elif name in memory.large:
                arrays[name] = self._without_missing(memory.large[name].take(self._at, axis=0))
            elif len(names) == 1:
                arrays[name] = self._without_missing(memory.gathered_field(name, self._at))
            else:
                arrays |= self.built_in([name])
        return arrays

    def built_in(self, names: Sequence[str]) -> Arrays:
        """Return values that every step has; see `StepsAt.built_in`."""
        values = {name: self._memory.values[name] for name in ON_REQUEST if name in names}
        copies = {name: column[self._at] for name, column in values.items()}
        if others := [name for name in names if name not in values]:
            copies |= self._memory.copies.of(self._rows, others)
        return {name: self._without_missing(column) for name, column in copies.items()}

    def is_any_barred(self) -> Flags:
        """Return in which rows of the index a step may not be sampled; see `StepsAt`."""
        flags = self._memory.gathered_links(self._at)["flags"]
        is_barred = ((flags & BARRED) != 0) & ~self._is_missing
        any_barred: Flags = is_barred.reshape(self._shape).any(
            axis=tuple(range(1, len(self._shape)))
        )
        return any_barred

    def _without_missing(self, values: NDArray[Any]) -> NDArray[Any]:
        if self._has_missing:
            values[self._is_missing] = np.zeros((), values.dtype)
        return self._shaped(values)

    def _shaped(self, values: NDArray[Any]) -> NDArray[Any]:
        return values.reshape(*self._shape, *values.shape[1:])

    def _padded(self, names: Sequence[str]) -> Arrays:
        """Return the fields of varying length and their lengths, of shape (n, ...)."""
        memory = self._memory
        if memory.tails is None or not any(memory.layout.specs[n].is_variable for n in names):
            return {}
        there = np.flatnonzero(~self._is_missing)
        tails = memory.tails.of(self._slots[there])
        of_steps = memory.layout.tail_columns(self._rows[there], tails, names)
        if not self._has_missing:
            return of_steps
        padded: Arrays = {}
        for name, values in of_steps.items():
            padded[name] = np.zeros((len(self._slots), *values.shape[1:]), values.dtype)
            padded[name][there] = values
        return padded


def block_numbers(memory: StepMemory, blocks: Integers) -> Integers:
    """Return which block of numbers blocks of slots have, -1 for those that are free."""
    slots = blocks[:, None] * BLOCK + np.arange(BLOCK)
    newest = memory.records[SEQ][slots].max(axis=1, initial=0)
    numbers: Integers = np.where(newest > 0, newest // BLOCK, NONE)
    return numbers


def restore(memory: StepMemory, n_used: int) -> None:
    """Restore the state that is needed to continue with the arrays of another memory.

    Args:
        memory: Memory with those arrays, and with the names and the episodes.
        n_used: Slots from 0 to this one have been given at some time.
    """
    memory.blocks.restore(block_numbers(memory, np.arange(n_used // BLOCK)))
    records = memory.records[:n_used]
    written = np.flatnonzero(records[SEQ] != 0)
    memory.tasks.restore(records[TASK][written].astype(np.int64))
    memory.agents.restore(records[AGENT][written].astype(np.int64))
    episodes = records[EPISODE][written].astype(np.int64)
    has_episode = episodes != NONE
    slots = written[has_episode]
    memory.episodes.restore(episodes[has_episode], records[T][slots].astype(np.int64), slots)
