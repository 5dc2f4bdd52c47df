"""Annotate the rows of a buffer."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import (
    BigInteger,
    Connection,
    Select,
    Text,
    bindparam,
    case,
    cast,
    func,
    literal,
    select,
    update,
)

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.plain_values import INT64_MAX
from sqlbuffer.display import shown
from sqlbuffer.encoding.priority_values import as_array
from sqlbuffer.encoding.records import encode_step
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import FieldSpec
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.buffers.window import BufferWindow, clean_after_write
from sqlbuffer.storage.changes import log_change
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.labels import postgresql, sqlite
from sqlbuffer.storage.labels.tables import (
    Label,
    columns_of,
    in_force,
    joined,
    label_history,
    labelled_extra,
)
from sqlbuffer.storage.rollout_stats import Rollout, change_returns
from sqlbuffer.storage.schema.json_values import json_kind
from sqlbuffer.storage.schema.parameters import SeqList, is_number_of
from sqlbuffer.storage.schema.planner import unindexed

_REALS = ("reward_t", "adv_t", "v_t")


@dataclass(frozen=True)
class Given:
    """Values of an annotation, as a caller gave them.

    Attributes:
        reals: `reward_t`, `adv_t` and `v_t`; None for a value that is not given.
        extra: A dict, a list of dicts, or None.
        fields: Declared fields, by name.
        specs: The declared fields of the buffer.
    """

    reals: Mapping[str, Any]
    extra: Any
    fields: Mapping[str, Any]
    specs: Mapping[str, FieldSpec]

    def label(self) -> Label:
        """Return the label that all rows get.

        Raises:
            FieldError: A value is not one finite number, `extra` is not a dict of JSON values, or a
                field cannot be annotated.
        """
        reals = {name: _one(name, value) for name, value in self.reals.items() if value is not None}
        fields = {}
        for name, value in self.fields.items():
            if _is_list(name, value):
                raise _takes_one(name, np.shape(value))
            fields[name] = self._field(name, [value])[0]
        extra = None if self.extra is None else _tree(self.extra, "extra")
        return Label(**reals, extra=extra, fields=fields or None)

    def labels(self, n: int) -> list[Label]:
        """Return the label of each of n rows.

        Raises:
            FieldError: As in `label`, or another shape.
        """
        columns = [_each(name, self.reals.get(name), n) for name in _REALS]
        rows = zip(*columns, _extras(self.extra, n), self._fields(n), strict=True)
        return [Label(*row) for row in rows]

    def _fields(self, n: int) -> Sequence[dict[str, Any] | None]:
        if not self.fields:
            return [None] * n
        columns = {}
        for name, value in self.fields.items():
            is_list = _is_list(name, value)
            values = self._field(name, value if is_list else [value])
            if is_list and len(values) != n:
                raise FieldError(f"{name}: expected {n} numbers or one, got {len(values)}")
            columns[name] = values if is_list else values * n
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _field(self, name: str, values: Any) -> list[Any]:
        """Return values of a field as JSON has them."""
        spec = self.specs.get(name)
        if spec is None:
            known = ", ".join(name for name, spec in self.specs.items() if spec.is_number)
            raise FieldError(
                f"annotate() does not know {name!r}; it takes reward=, adv_t=, v_t=, extra= and "
                f"scalar fields of the buffer{f': {known}' if known else ', which has none'}"
            )
        if not spec.is_number:
            raise FieldError(
                f"field {name!r}: only a number of up to 64 bits or a boolean can be annotated; "
                f"this is {spec}"
            )
        try:
            cast = spec.cast_rows(values)
        except FieldError as error:  # there is no `casting` here
            text = str(error).removesuffix(", or allow it with casting='unsafe'")
            raise FieldError(text) from None
        if cast.dtype.kind == "f":
            _check_finite(name, cast)
            cast = cast.astype(np.float64)
        listed: list[Any] = cast.tolist()
        return listed


def _is_list(name: str, value: Any) -> bool:
    """Return True for a value for each row, and False for one for all."""
    try:
        return np.ndim(value) > 0
    except ValueError:
        raise FieldError(f"{name}: expected numbers in one dimension, got {shown(value)}") from None


def checked_version(version: Any) -> int | None:
    """Return a version; None if none is given."""
    if isinstance(version, (bool, np.bool_)):
        raise FieldError(f"version: expected an integer of 64 bits, got {shown(version)}")
    return None if version is None else encode_step(version, "version")


def checked_reward(value: Any, name: str) -> float | None:
    """Return a reward; None if none is given."""
    return None if value is None else _one(name, value)


def _one(name: str, value: Any) -> float:
    array = as_array(value, name)
    if array.ndim:
        raise _takes_one(name, array.shape)
    return _finite(name, array.reshape(1))[0]


def _takes_one(name: str, shape: tuple[int, ...]) -> FieldError:
    return FieldError(
        f"{name}: a condition, or a set of rows, takes one number for all, got shape "
        f"{shape}; give a list of their seq to label each with its own"
    )


def _each(name: str, value: Any, n: int) -> Sequence[float | None]:
    if value is None:
        return [None] * n
    array = as_array(value, name)
    if not array.ndim:
        return _finite(name, array.reshape(1)) * n
    if array.shape != (n,):
        raise FieldError(f"{name}: expected {n} numbers or one, got shape {array.shape}")
    return _finite(name, array)


def _finite(name: str, array: Any) -> list[float]:
    if not array.size:
        return []
    if array.dtype.kind not in "iuf":
        raise FieldError(f"{name}: expected finite numbers, got {shown(array[0])}")
    with np.errstate(over="ignore"):
        reals = array.astype(np.float64) + 0.0  # no -0.0
    _check_finite(name, reals)
    found: list[float] = reals.tolist()
    return found


def _check_finite(name: str, reals: NDArray[Any]) -> None:
    wrong = np.flatnonzero(~np.isfinite(reals))
    if len(wrong):
        at = f"{name}[{wrong[0]}]" if len(reals) > 1 else name
        raise FieldError(f"{at}: expected a finite number, got {reals[wrong[0]]}")


def _extras(extra: Any, n: int) -> Sequence[dict[str, Any] | None]:
    if extra is None:
        return [None] * n
    if isinstance(extra, Mapping):
        return [_tree(extra, "extra")] * n
    if not isinstance(extra, (list, tuple)):
        raise FieldError(
            f"extra: expected a dict, or a list of one for each row, got {shown(extra)}"
        )
    if len(extra) != n:
        raise FieldError(f"extra: expected {n} dicts or one, got {len(extra)}")
    return [_tree(each, f"extra[{i}]") for i, each in enumerate(extra)]


def _tree(extra: Any, path: str) -> dict[str, Any]:
    if not isinstance(extra, Mapping) or not extra:
        raise FieldError(f"{path}: expected a dict with at least one key, got {shown(extra)}")
    for key in extra:
        if not isinstance(key, str):
            raise FieldError(f"{path}: its keys are texts, got {shown(key)}")
    encoder = Encoder()
    tree: dict[str, Any] = encoder.tree({str(key): value for key, value in extra.items()}, path)
    if encoder.blob:
        raise FieldError(f"{path}: arrays and bytes are not kept with labels; give JSON values")
    return tree


ROWS_AT_ONCE = 5_000

# Selects the numbers of rows of a window, in ascending order.
SelectSeqs = Callable[[BufferWindow], Select[Any]]
StepsAt = Callable[[Any, Any], tuple[Any, Any]]

locked_labels = by_database(sqlite=sqlite.locked_labels, postgresql=postgresql.locked_labels)
write_labels = by_database(sqlite=sqlite.write_labels, postgresql=postgresql.write_labels)

_UNLABELLED: tuple[Label, str | None] = (Label(), None)
_NO_VERSION = -INT64_MAX - 2
_SEQS = bindparam("seqs", type_=SeqList())
_OF = bindparam("of_buffer", type_=label_history.c.buffer_id.type)
_given = label_history.c


@lru_cache
def _held(steps_at: StepsAt) -> Select[Any]:
    """Select the steps of some numbers that are there, with what labels change of them."""
    table, is_one = steps_at(_OF, _SEQS)
    own = table.c
    # The payload is only read if needed: rows with tags are rare.
    is_tagged = json_kind(own.extra, stored_path=("$reals",)).is_not(None)
    with_extra = is_tagged | bindparam("with_extra", type_=buffers.c.has_labels.type)
    return select(
        own.seq,
        own.task_id,
        own.episode_id,
        own.reward_t,
        case((with_extra, own.extra)).cast(Text),
    ).where(is_one, unindexed(own.seq) > bindparam("low", type_=BigInteger()))


_HISTORY = select(
    _given.seq,
    _given.version,
    _given.reward_t,
    _given.adv_t,
    _given.v_t,
    cast(_given.extra, Text),
    cast(_given.fields, Text),
).where(_given.buffer_id == _OF, is_number_of(_given.seq, _SEQS))
_HIGHEST = select(func.max(_given.version)).where(
    _given.buffer_id == _OF, is_number_of(_given.seq, _SEQS)
)
# While an episode is open, this is the change of its return by annotations; its end adds the rest.
_RETURN = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_episode"))
    .values({"return": func.coalesce(episodes.c["return"], 0.0) + bindparam("change")})
)


@dataclass(frozen=True)
class Annotation:
    """An annotation to write.

    Attributes:
        target: The rows: a function that selects their numbers in a window, or the numbers,
            distinct and in ascending order.
        labels: One label for all rows, or one for each number.
        version: The version; None for one more than the highest version of the rows.
    """

    target: SelectSeqs | Sequence[int]
    labels: Label | Sequence[Label]
    version: int | None

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the rows; none, if a function selects them."""
        return self.target if isinstance(self.target, Sequence) else ()

    def label_of(self) -> Mapping[int, Label] | None:
        """Return the label of each number; None if all rows get the same."""
        if isinstance(self.labels, Label) or not isinstance(self.target, Sequence):
            return None
        return dict(zip(self.target, self.labels, strict=True))


@dataclass(frozen=True)
class Annotated:
    """What became of an annotation.

    Attributes:
        n_rows: Number of annotated rows.
        missing: Numbers that were given, and that the buffer does not hold.
        low: Rows up to this number are evicted.
        high: The newest row.
    """

    n_rows: int
    missing: Sequence[int]
    low: int
    high: int


class Labelling:
    """Annotates the rows of a buffer.

    Args:
        buffer: The buffer.
        steps_at: Returns a table of its steps with some numbers; see `StepLayout.at`.
    """

    def __init__(self, buffer: OpenBuffer, steps_at: StepsAt) -> None:
        self.buffer, self._steps_at = buffer, steps_at

    def annotate(self, annotation: Annotation) -> Annotated:
        """Write an annotation in one transaction."""
        written = self.buffer.write(lambda connection: self._write_labels(connection, annotation))
        clean_after_write(self.buffer.engine, written.n_rows)
        return written

    def _write_labels(self, connection: Connection, annotation: Annotation) -> Annotated:
        window = self.buffer.window_in(connection)
        target, low = annotation.target, window.low
        if isinstance(target, Sequence):
            seqs = [seq for seq in target if low < seq <= window.high]
        else:
            seqs = list(connection.execute(target(window)).scalars())
        if not seqs or not (window.has_labels or self._holds_any(connection, seqs, low)):
            return Annotated(0, annotation.numbers, low, window.high)
        self._begin_labels(connection, window)
        # All rows, in ascending order, before reading values that other transactions may change.
        before: dict[int, tuple[Label, str | None]] = {}
        for chunk in _chunks(seqs):
            labels = locked_labels(connection, self.buffer.info.id, chunk)
            for seq, reward, advantage, value, extra, fields in labels:
                tree = None if fields is None else orjson.loads(fields)
                before[seq] = Label(reward, advantage, value, None, tree), extra
        highest, version = self._highest_version(connection, seqs), annotation.version
        if version is None:
            version = _after(highest)
        is_new = version > highest
        changes: dict[Rollout, list[float]] = {}
        written: list[int] = []
        own_labels, of_all = annotation.label_of(), annotation.labels
        for chunk in _chunks(seqs):
            said: dict[int, Any] = {seq: own_labels[seq] if own_labels else of_all for seq in chunk}
            merged = _joined(before, said) if is_new else None
            written += self._write_chunk(connection, low, version, said, before, merged, changes)
        self._change_returns(connection, changes)
        missing = sorted(set(annotation.numbers).difference(written))
        return Annotated(len(written), missing, low, window.high)

    def _holds_any(self, connection: Connection, seqs: Sequence[int], low: int) -> bool:
        """Return True if any of the rows exists."""
        for chunk in _chunks(seqs):
            wanted = bindparam(None, chunk, SeqList())
            table, is_one = self._steps_at(literal(self.buffer.info.id), wanted)
            own = select(table.c.seq).where(is_one, unindexed(table.c.seq) > low).limit(1)
            if connection.execute(own).first() is not None:
                return True
        return False

    def _begin_labels(self, connection: Connection, window: BufferWindow) -> None:
        own = buffers.c.id == self.buffer.info.id
        if not window.has_labels:
            connection.execute(update(buffers).where(own).values(has_labels=True))
        elif window.evict_by != "row":
            # A process that evicts there holds this lock as well, and then episodes and labels.
            connection.execute(select(buffers.c.id).where(own).with_for_update(key_share=True))

    def _highest_version(self, connection: Connection, seqs: Sequence[int]) -> int:
        """Return the highest version of the rows; below all versions if they have none."""
        versions = [
            connection.execute(_HIGHEST, {"of_buffer": self.buffer.info.id, "seqs": chunk}).scalar()
            for chunk in _chunks(seqs)
        ]
        return max((version for version in versions if version is not None), default=_NO_VERSION)

    def _write_chunk(
        self,
        connection: Connection,
        low: int,
        version: int,
        said: Mapping[int, Label],
        before: Mapping[int, tuple[Label, str | None]],
        merged: Mapping[int, Label] | None,
        changes: dict[Rollout, list[float]],
    ) -> list[int]:
        """Write the labels of some rows, and add up the changes of rollouts' returns.

        Args:
            connection: The transaction.
            low: Rows up to this number have left the window.
            version: The version.
            said: The label of each row.
            before: The labels that rows have, each without extra; and their extra.
            merged: If the version is the newest one: the labels of all versions. Otherwise the
                history of the rows decides.
            changes: Takes the changes of returns.

        Returns:
            Those of the rows that still exist.
        """
        parameters: dict[str, Any] = {"of_buffer": self.buffer.info.id, "seqs": list(said)}
        is_new = merged is not None
        if merged is None:
            said, merged = self._with_history(connection, version, said)
        # The newest version is merged into the present extra, others into the row's own.
        has_extra = any(label.extra is not None for label in merged.values())
        seqs, extras = list[int](), list[str | None]()
        parameters |= {"low": low, "with_extra": has_extra}
        held = fetch(connection, _held(self._steps_at), parameters)
        for seq, task, episode, reward, extra in held:
            label, (present, late_extra) = merged[seq], before.get(seq, _UNLABELLED)
            is_merged = is_new and late_extra is not None
            made = labelled_extra(late_extra if is_merged else extra, label)
            seqs.append(seq)
            extras.append(late_extra if is_merged and made is None else made)
            change = _change(reward, present.reward_t, label.reward_t)
            if change is not None:
                changes.setdefault((task, episode or 0), []).append(change)
        given = columns_of([said[seq] for seq in seqs])
        now = columns_of([merged[seq] for seq in seqs])._replace(extra=extras)
        is_first = is_new and not before
        write_labels(connection, self.buffer.info.id, version, seqs, given, now, is_new, is_first)
        log_change(connection, self.buffer.info.id, "labelled", seqs, self.buffer.origin)
        return seqs

    def _with_history(
        self, connection: Connection, version: int, said: Mapping[int, Label]
    ) -> tuple[dict[int, Label], dict[int, Label]]:
        """Return for each row the label of a version, and that of all versions."""
        parameters = {"of_buffer": self.buffer.info.id, "seqs": list(said)}
        histories: dict[int, dict[int, Label]] = {seq: {} for seq in said}
        for seq, its_version, *reals, extra, fields in fetch(connection, _HISTORY, parameters):
            trees = (tree and orjson.loads(tree) for tree in (extra, fields))
            histories[seq][its_version] = Label(*reals, *trees)
        for seq, label in said.items():
            earlier = histories[seq].get(version)
            histories[seq][version] = label if earlier is None else joined(earlier, label)
        of_version = {seq: history[version] for seq, history in histories.items()}
        return of_version, {seq: in_force(history) for seq, history in histories.items()}

    def _change_returns(
        self, connection: Connection, changes: Mapping[Rollout, Sequence[float]]
    ) -> None:
        of_episodes = {episode: own for (_, episode), own in changes.items() if episode}
        # In the order in which writers end several episodes.
        ordered = select(episodes.c.id).order_by(episodes.c.key, episodes.c.task_id)
        rows = []
        for chunk in _chunks(sorted(of_episodes)):
            numbers = bindparam(None, chunk, SeqList())
            found = ordered.where(is_number_of(episodes.c.id, numbers))
            ids = connection.execute(found.with_for_update(key_share=True)).scalars()
            rows += [{"of_episode": id_, "change": math.fsum(of_episodes[id_])} for id_ in ids]
        if rows:
            connection.execute(_RETURN, rows)
        change_returns(connection, self.buffer.info.id, changes)


def _joined(
    before: Mapping[int, tuple[Label, str | None]], said: Mapping[int, Label]
) -> Mapping[int, Label]:
    if not before:
        return said
    return {seq: joined(before.get(seq, _UNLABELLED)[0], label) for seq, label in said.items()}


def _after(highest: int) -> int:
    if highest == INT64_MAX:
        raise FieldError(
            f"a row already has the highest version, {INT64_MAX}; pass that version "
            f"to add values to it"
        )
    return 1 if highest == _NO_VERSION else highest + 1


def _chunks(seqs: Sequence[int]) -> Iterator[Sequence[int]]:
    return (seqs[start : start + ROWS_AT_ONCE] for start in range(0, len(seqs), ROWS_AT_ONCE))


def _change(own: float | None, before: float | None, now: float | None) -> float | None:
    """Return the change of a row's reward; None if it does not change, or if the row has none.

    Args:
        own: The row's own reward.
        before: The late reward before.
        now: The late reward now.
    """
    held = own if before is None else before
    if now is None or now == held:
        return None
    if held is None:
        return now
    # A return that an infinite reward made infinite stays infinite.
    return now - held if math.isfinite(held) else None
