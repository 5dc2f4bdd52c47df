"""How the ranks of a training run agree on an iteration and on the rows of its passes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import uuid4

import orjson
from sqlalchemy import (
    Column,
    Connection,
    Table,
    Text,
    TextClause,
    delete,
    literal,
    select,
    text,
    update,
)

from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.schema.expressions import in_seconds, utc_now
from sqlbuffer.storage.schema.metadata import KEY, TIME, buffer_key, metadata

rank_agreements = Table(
    "rank_agreements",
    metadata,
    buffer_key(),
    Column("topic", KEY, primary_key=True, comment="loader, or iteration, of several ranks"),
    Column("name", KEY, primary_key=True, comment="what they agree on"),
    Column("value", Text, nullable=False, comment="the value that all ranks use, as JSON"),
    Column(
        "agreed_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when it was written or used last",
    ),
    info={"learner_may": "INSERT, UPDATE (value, agreed_at), DELETE"},
)


# A rank that comes later than this after the last sign of life of the others begins another
# iteration.
JOIN_S = 600.0
KEEP_S = 86_400.0

_T = rank_agreements.c
_INSERT = (
    "INSERT INTO rank_agreements (buffer_id, topic, name, value) "
    "VALUES (:buffer_id, :topic, :name, :value) ON CONFLICT (buffer_id, topic, name) DO "
)
# Both databases know these forms; `excluded` has the default of the time.
_ADD = text(_INSERT + "NOTHING")
_CHANGE = text(_INSERT + "UPDATE SET value = excluded.value")
_SET = text(_INSERT + "UPDATE SET value = excluded.value, agreed_at = excluded.agreed_at")


class Member(NamedTuple):
    """A rank of a training run, in one process.

    Attributes:
        rank: Number of the rank.
        process: Random id of the process, and the same in its workers.
    """

    rank: int
    process: str


class Joined(NamedTuple):
    """An iteration that a rank takes part in.

    Attributes:
        token: Random id of the iteration, the same for all ranks.
        value: What the first rank gave.
        turn: Number of the iteration among those of the same loaders.
    """

    token: str
    value: Any
    turn: int


class RankAgreements:
    """Values that the ranks of a training run share through the database.

    The first rank that needs a value writes it. `join` finds out which iterations of different
    processes belong together: a rank takes the oldest one that it has not taken part in.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self._buffer = buffer

    def join(self, group: str, member: Member, value: Any) -> Joined:
        """Return the iteration that a rank takes part in, perhaps a new one.

        A process that starts again after it was killed takes part in the iteration that it had not
        finished, if no other rank has finished it.

        Args:
            group: Text that the loaders of all ranks share.
            member: The rank.
            value: JSON value of a new iteration.

        Raises:
            StorageReadOnlyError: The role may not write; learners may.
        """
        begun = {"token": str(uuid4()), "value": value}

        def work(connection: Connection) -> Joined:
            connection.execute(
                delete(rank_agreements).where(
                    self._is_own, _T.agreed_at < in_seconds(literal(-KEEP_S))
                )
            )
            turns = self._turns(connection, group)
            turn = next(
                (number for number in sorted(turns) if _may_join(turns[number], member)),
                max(turns, default=0) + 1,
            )
            if turn in turns and _is_unused(turns[turn], member):
                self._write(connection, _SET, group, _turn_name(turn), begun)
            start = self._add(connection, group, _turn_name(turn), begun)
            self._end_others(connection, group, turns, turn, member)
            self._write(connection, _SET, group, _rank_name(turn, member.rank), _mark(member))
            return Joined(start["token"], start["value"], turn)

        return self._buffer.write(work)

    def agree(self, token: str, name: str, make: Callable[[], Any]) -> Any:
        """Return the JSON value of a name: what `make` returned to the rank that asked first."""
        value = self._buffer.read(lambda connection: self._value(connection, token, name))
        if value is not None:
            return value
        made = make()
        return self._buffer.write(lambda connection: self._add(connection, token, name, made))

    def passes(self, token: str) -> dict[int, Any]:
        """Return the rows of the passes of an iteration that not all parts have behind."""
        is_pass = (self._is_own, _T.topic == token, _T.name.startswith(_PASS))
        statement = select(_T.name, _T.value).where(*is_pass)
        rows = self._buffer.read(lambda connection: connection.execute(statement).all())
        return {int(name.removeprefix(_PASS)): orjson.loads(value) for name, value in rows}

    def begin_pass(self, token: str, part: int, n_parts: int, number: int) -> None:
        """Note that a part of the ranks' workers has the rows of a pass.

        The rows of passes that all parts have behind are deleted.
        """

        def work(connection: Connection) -> None:
            self._write(connection, _SET, token, f"part-{part}", number)
            rows = connection.execute(
                select(_T.name, _T.value).where(self._is_own, _T.topic == token)
            ).all()
            reached = [int(orjson.loads(v)) for name, v in rows if name.startswith("part-")]
            if len(reached) == n_parts:
                past_names = [pass_name(behind) for behind in range(min(reached))]
                gone = [name for name, _ in rows if name in past_names]
                connection.execute(
                    delete(rank_agreements).where(
                        self._is_own, _T.topic == token, _T.name.in_(gone)
                    )
                )

        self._buffer.write(work)

    def rejoin(self, group: str, joined: Joined, member: Member) -> None:
        """Note that a rank goes on from a state, perhaps in another process."""

        def work(connection: Connection) -> None:
            start = self._value(connection, group, _turn_name(joined.turn))
            if start is None or start["token"] == joined.token:
                name = _rank_name(joined.turn, member.rank)
                self._write(connection, _SET, group, name, _mark(member))

        self._buffer.write(work)

    def keep(self, group: str, turn: int, rank: int) -> None:
        """Note that a rank still takes part, so that late ranks find its iteration."""
        is_entry = (self._is_own, _T.topic == group, _T.name == _rank_name(turn, rank))
        later = update(rank_agreements).where(*is_entry).values(agreed_at=in_seconds(literal(0.0)))
        self._buffer.write(lambda connection: connection.execute(later))

    def end(self, group: str, turn: int, member: Member, *, early: bool) -> None:
        """Note that a rank has reached the end of an iteration, or left it early.

        If no other rank has taken part, an iteration that was left early is begun anew.
        """
        if self._buffer.is_closed:
            return

        def work(connection: Connection) -> None:
            name = _rank_name(turn, member.rank)
            mark = self._value(connection, group, name)
            if mark is not None and mark["process"] == member.process:
                ended = {**mark, "finished": True, "early": early}
                self._write(connection, _SET, group, name, ended)

        self._buffer.write(work)

    @property
    def _is_own(self) -> Any:
        return _T.buffer_id == self._buffer.info.id

    def _turns(self, connection: Connection, group: str) -> dict[int, "_Turn"]:
        is_fresh = _T.agreed_at > in_seconds(literal(-JOIN_S))
        rows = connection.execute(
            select(_T.name, _T.value, is_fresh).where(self._is_own, _T.topic == group)
        )
        turns: dict[int, _Turn] = {}
        for name, value, fresh in rows:
            number, _, rank = name.partition("/")
            turn = turns.setdefault(int(number), _Turn({}))
            turn.is_fresh = turn.is_fresh or bool(fresh)
            if rank:
                turn.ranks[int(rank)] = orjson.loads(value)
        return turns

    def _end_others(
        self,
        connection: Connection,
        group: str,
        turns: dict[int, "_Turn"],
        chosen: int,
        member: Member,
    ) -> None:
        """Mark the iterations that a rank has left behind."""
        for number, turn in turns.items():
            mark = turn.ranks.get(member.rank)
            if mark is not None and number < chosen and not mark["finished"]:
                name = _rank_name(number, member.rank)
                self._write(connection, _CHANGE, group, name, {**mark, "finished": True})

    def _value(self, connection: Connection, topic: str, name: str) -> Any:
        is_entry = (self._is_own, _T.topic == topic, _T.name == name)
        value = connection.execute(select(_T.value).where(*is_entry)).scalar_one_or_none()
        return None if value is None else orjson.loads(value)

    def _add(self, connection: Connection, topic: str, name: str, value: Any) -> Any:
        """Write a value unless there is one; return the one that counts."""
        self._write(connection, _ADD, topic, name, value)
        return self._value(connection, topic, name)

    def _write(
        self, connection: Connection, statement: TextClause, topic: str, name: str, value: Any
    ) -> None:
        values = {"topic": topic, "name": name, "value": orjson.dumps(value).decode()}
        connection.execute(statement, {"buffer_id": self._buffer.info.id, **values})


@dataclass
class _Turn:
    """An iteration, and who takes part; it is fresh if one of them was seen lately."""

    ranks: dict[int, Any]
    is_fresh: bool = False


_PASS = "pass-"


def pass_name(number: int) -> str:
    """Return the name of the rows of a pass."""
    return f"{_PASS}{number}"


def _turn_name(turn: int) -> str:
    return f"{turn:09d}"


def _rank_name(turn: int, rank: int) -> str:
    return f"{turn:09d}/{rank}"


def _mark(member: Member) -> dict[str, Any]:
    return {"process": member.process, "finished": False}


def _is_unused(turn: _Turn, member: Member) -> bool:
    """Return True if this process alone has looked at the rows, and left."""
    entry = turn.ranks.get(member.rank)
    if entry is None or len(turn.ranks) > 1 or entry["process"] != member.process:
        return False
    return bool(entry.get("early"))


def _may_join(turn: _Turn, member: Member) -> bool:
    entry = turn.ranks.get(member.rank)
    if not turn.is_fresh:
        return False
    if entry is None:
        return True
    if entry["process"] == member.process:
        return _is_unused(turn, member)
    return not any(mark["finished"] for mark in turn.ranks.values())
