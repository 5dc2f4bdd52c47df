"""Messages of conversations that are stored once: written as ids, and read whole.

A step of a buffer with `shared_messages` has the ids of its messages in place of their text, as
runs of consecutive ids. A message that refers to array bytes of the step stays in it. On SQLite a
long message has several rows with consecutive ids, and only the first one has the hash.

No message is removed while a step uses it. `last_seq` is at least the number of each step that uses
the message. A write that would pass it moves it half a window ahead, so a message that all writers
use is changed twice in a window, and no writer waits for another one.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, Text, cast
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.query.selected_fields import references
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.schema.expressions import processed
from sqlbuffer.storage.schema.metadata import JSON
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

# Key of the list of ids in the JSON of a step of a chunk.
IDS = "message_ids"
_HASH_BYTES = 16
_AT_ONCE = 500
# A row of 2.1 KB would have a page of 4 KB for itself. With parts of at most 780 bytes, texts of
# 0.5 to 4 KB take up to 1.23 times their size. With smaller ones they are read more slowly.
_PIECE_BYTES = 780
# Rows of half a window, where the buffer has no limit.
_HALF = "(SELECT max(coalesce(max_capacity, 131072) / 2, 1) FROM buffers WHERE id = :id)"


class whole_messages(FunctionElement[str]):
    """The JSON of the messages of a row, as text; of its buffer_id, seq, message_ids, messages."""

    inherit_cache = True
    type = Text()


@compiles(whole_messages, "postgresql")
def _pg_whole_messages(element: whole_messages, compiler: Any, **kw: Any) -> str:
    buffer_id, _, ids, own = processed(element, compiler, kw)
    return (
        f"CASE WHEN {ids} IS NULL THEN CAST({own} AS text) "
        f"ELSE sqlbuffer_messages_v1({buffer_id}, {ids}, {own}) END"
    )


@compiles(whole_messages, "sqlite")
def _sqlite_whole_messages(element: whole_messages, compiler: Any, **kw: Any) -> str:
    # By a view: conditions repeat this in one another, and SQLite limits how deep a statement is.
    buffer_id, seq, ids, own = processed(element, compiler, kw)
    return (
        f"CASE WHEN {ids} IS NULL THEN {own} ELSE (SELECT w.messages FROM row_messages w "
        f'WHERE w."key" = ({buffer_id} << {NUMBER_BITS} | {seq})) END'
    )


def sqlite_messages(buffer_id: str, ids: str, own: str) -> str:
    """Return SQL for the messages of a step.

    Args:
        buffer_id: SQL for the buffer.
        ids: SQL for the ids as runs; see `SharedList`.
        own: SQL for the list with the messages that stay in the step.
    """
    n = f"json_extract({ids}, '$[' || (r.key + 1) || ']')"
    # For two paths json_extract returns a list, whose text has each value as it is stored.
    pair = f"json_extract({own}, '$.none', '$[' || {n} || ']')"
    # The rows of both loops come in order. A substr() of the whole text would count its characters.
    return f"""(SELECT coalesce(group_concat(
        CASE WHEN m.hash IS NULL AND m.id > r.value THEN m.content
        WHEN m.id > r.value OR m.id > 0 AND r.key > 0 THEN ',' || m.content
        WHEN m.id > 0 THEN '[' || m.content
        ELSE CASE WHEN r.key > 0 THEN ',' ELSE '[' END
            || CASE WHEN r.value > 0 THEN 'null' ELSE substr({pair}, 7, length({pair}) - 7) END
        END, ''), '[') || ']'
        FROM json_each({ids}) r LEFT JOIN messages m
        ON m.buffer_id = {buffer_id} AND m.id >= nullif(r.value, 0) AND m.id < r.value + {n}
        WHERE (r.key & 1) = 0)"""


def whole_column(steps: Any) -> Any:
    """Return the messages of the steps of a table, as text or as JSON."""
    columns = steps.c
    if IDS not in columns:
        return columns.messages
    return whole_messages(columns.buffer_id, columns.seq, columns.message_ids, columns.messages)


def whole_json(steps: Any) -> Any:
    """Return the messages of the steps of a table as JSON."""
    whole = whole_column(steps)
    return cast(whole, JSON) if IDS in steps.c else whole


def _dumps(tree: Any) -> str:
    """Return JSON with its keys in the order in which they are given, as SQLite keeps them."""
    return orjson.dumps(tree).decode()


class _Part(NamedTuple):
    """The JSON of a message, and its hash; None if it stays in its step."""

    text: str
    hash: bytes | None


def _part(message: Any) -> _Part:
    text = _dumps(message)
    if '"$' in text and next(references(message), None) is not None:
        return _Part(text, None)
    return _Part(text, blake2b(text.encode(), digest_size=_HASH_BYTES).digest())


class _Splitter:
    """Splits lists of messages; of a list that begins like the last one, only the rest is read."""

    def __init__(self) -> None:
        self._text, self._parts = "[]", list[_Part]()

    def parts(self, text: str) -> list[_Part] | None:
        """Return the messages; None for a text that is not a list, or has values of others."""
        head = self._text[:-1]
        continues = self._parts and text.startswith(head) and text[len(head)] == ","
        try:
            more = orjson.loads("[" + text[len(head) + 1 :] if continues else text)
        except orjson.JSONDecodeError:  # a number that JSON does not have
            return None
        if not isinstance(more, list):
            return None
        parts = [*self._parts, *map(_part, more)] if continues else list(map(_part, more))
        self._text, self._parts = text, parts
        return parts


# Rows of messages by id: whether a message begins there, and its JSON or a part of it.
Contents = Mapping[int, tuple[bool, str]]


class SharedList(NamedTuple):
    """A list of messages as it is stored.

    Attributes:
        ids: The ids of the messages, as runs: a first id, their number, and so on. After a 0
            comes the place of a message in `own`.
        own: JSON of a list with the messages that stay in the step; None if there are none.
    """

    ids: list[int]
    own: str | None


def share(
    connection: Connection, buffer_id: int, lists: Iterable[tuple[int, str | None]]
) -> list[SharedList | None]:
    """Store the messages of steps.

    Args:
        connection: The transaction that stores the steps.
        buffer_id: The buffer.
        lists: Number of each step, and the JSON of its messages.

    Returns:
        The lists as they are stored; None for one that stays as it is.
    """
    splitter, high = _Splitter(), 0
    texts: dict[bytes, str] = {}
    split: list[list[_Part] | None] = []
    for seq, text in lists:
        parts = None if text is None else splitter.parts(text)
        if parts is not None:
            high = max(high, seq)
            texts.update((part.hash, part.text) for part in parts if part.hash is not None)
        split.append(parts)
    ids = _ids_of(connection, buffer_id, texts, high) if texts else {}
    return [None if not parts else _shared(parts, ids) for parts in split]


def _shared(parts: Sequence[_Part], ids: Mapping[bytes, tuple[int, int]]) -> SharedList | None:
    runs: list[int] = []
    own: list[str] = []
    for text, hash_ in parts:
        if hash_ is None:
            runs += (0, len(own))
            own.append(text)
            continue
        first, n = ids[hash_]
        if runs and runs[-2] and runs[-2] + runs[-1] == first:
            runs[-1] += n
        else:
            runs += (first, n)
    if len(own) == len(parts):
        return None
    return SharedList(runs, f"[{','.join(own)}]" if own else None)


def share_payloads(
    connection: Connection, buffer_id: int, payloads: Sequence[tuple[int, str | None]]
) -> list[str | None]:
    """Store the messages of steps of chunks; return their JSON as it is stored.

    Args:
        connection: The transaction that stores the steps.
        buffer_id: The buffer.
        payloads: Number of each step, and its JSON.
    """
    trees = [_tree(text) for _, text in payloads]
    lists = [None if tree is None else _dumps(tree["messages"]) for tree in trees]
    numbers = (seq for seq, _ in payloads)
    shared = share(connection, buffer_id, zip(numbers, lists, strict=True))
    stored = []
    for (_, text), tree, one in zip(payloads, trees, shared, strict=True):
        if one is not None and tree is not None:
            del tree["messages"]
            if one.own is not None:
                tree["messages"] = orjson.loads(one.own)
            tree[IDS] = one.ids
            text = _dumps(tree)
        stored.append(text)
    return stored


def share_lists(
    connection: Connection, buffer_id: int, first_seqs: Sequence[int], chunks: Sequence[str | None]
) -> list[str | None]:
    """Store the messages of chunks; return the JSON of each chunk as it is stored.

    Args:
        connection: The transaction that stores the chunks.
        buffer_id: The buffer.
        first_seqs: Number of the first step of each chunk.
        chunks: For each chunk a list of the JSON of its steps.
    """
    trees = [None if text is None else orjson.loads(text) for text in chunks]
    steps = [
        (first + place, None if step is None else _dumps(step))
        for first, tree in zip(first_seqs, trees, strict=True)
        for place, step in enumerate(tree or ())
    ]
    stored = iter(share_payloads(connection, buffer_id, steps))
    return [
        None if tree is None else f"[{','.join(next(stored) or 'null' for _ in tree)}]"
        for tree in trees
    ]


def _tree(text: str | None) -> dict[str, Any] | None:
    if text is None or '"messages":' not in text:
        return None
    try:
        tree: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return tree if isinstance(tree.get("messages"), list) else None


def whole_lists(
    connection: Connection, buffer_id: int, stored: Sequence[tuple[Sequence[int], str | None]]
) -> list[str]:
    """Return the JSON of lists of messages: `ids` and `own` of each `SharedList`."""
    contents = _contents(connection, buffer_id, (ids for ids, _ in stored))
    return [
        f"[{','.join(_whole(contents, ids, [] if own is None else orjson.loads(own)))}]"
        for ids, own in stored
    ]


def _whole(contents: Contents, ids: Sequence[int], own: Sequence[Any]) -> Iterator[str]:
    """Yield the JSON of each message of a list."""
    for first, n in zip(ids[::2], ids[1::2], strict=True):
        if not first:
            yield _dumps(own[n])
            continue
        text = ""
        for id_ in range(first, first + n):
            begins, content = contents.get(id_, (True, "null"))
            if begins and text:
                yield text
            text = content if begins else text + content
        yield text


def whole_payloads(
    connection: Connection, buffer_id: int, payloads: Sequence[str | None]
) -> list[str | None]:
    """Return the JSON of chunks, each a list with the JSON of its steps, with whole messages."""
    trees = {
        i: orjson.loads(text) for i, text in enumerate(payloads) if text is not None and IDS in text
    }
    steps = [
        step for tree in trees.values() for step in tree if isinstance(step, dict) and IDS in step
    ]
    contents = _contents(connection, buffer_id, (step[IDS] for step in steps))
    for step in steps:
        texts = _whole(contents, step.pop(IDS), step.get("messages") or [])
        step["messages"] = list(map(orjson.Fragment, texts))
    return [_dumps(trees[i]) if i in trees else text for i, text in enumerate(payloads)]


def _sqlite_contents(connection: Connection, buffer_id: int, ids: list[int]) -> list[Any]:
    statement = (
        "SELECT id, hash IS NOT NULL, content FROM messages "
        "WHERE buffer_id = ? AND id IN (SELECT value FROM json_each(?))"
    )
    values = (buffer_id, orjson.dumps(ids).decode())
    return list(driver_of(connection).execute(statement, values))


def _postgresql_contents(connection: Connection, buffer_id: int, ids: list[int]) -> list[Any]:
    statement = (
        "SELECT w.id, true, m.content FROM unnest(%s::integer[]) AS w(id) CROSS JOIN LATERAL ("
        "SELECT k.content::text FROM messages k WHERE k.buffer_id = %s AND k.id = w.id LIMIT 1) m"
    )
    return list(driver_of(connection).execute(statement, (ids, buffer_id)))


def _sqlite_ids_of(
    connection: Connection, buffer_id: int, texts: Mapping[bytes, str], high: int
) -> dict[bytes, tuple[int, int]]:
    driver = driver_of(connection)
    _sqlite_sweep(driver, buffer_id)
    hashes, ids, old = list(texts), dict[bytes, tuple[int, int]](), list[int]()
    for start in range(0, len(hashes), _AT_ONCE):
        some = hashes[start : start + _AT_ONCE]
        statement = (
            "SELECT hash, id, last_seq FROM messages "
            f"WHERE buffer_id = ? AND hash IN ({', '.join('?' * len(some))})"
        )
        for hash_, id_, last_seq in driver.execute(statement, (buffer_id, *some)).fetchall():
            ids[hash_] = id_, len(_pieces(texts[hash_]))
            if last_seq < high:
                old.extend(range(id_, id_ + ids[hash_][1]))
    parameters = {"id": buffer_id, "high": high}
    if old:
        driver.execute(
            f"UPDATE messages SET last_seq = :high + {_HALF} WHERE buffer_id = :id "
            "AND id IN (SELECT value FROM json_each(:ids))",
            {**parameters, "ids": orjson.dumps(old).decode()},
        )
    new = [hash_ for hash_ in hashes if hash_ not in ids]
    if new:
        ((last_id, last_seq),) = driver.execute(
            "SELECT coalesce((SELECT max(id) FROM messages WHERE buffer_id = :id), 0), "
            f":high + {_HALF}",
            parameters,
        ).fetchall()
        rows: list[tuple[Any, ...]] = []
        for hash_ in new:
            pieces, id_ = _pieces(texts[hash_]), last_id + len(rows) + 1
            ids[hash_] = id_, len(pieces)
            for place, piece in enumerate(pieces):
                rows.append((buffer_id, id_ + place, None if place else hash_, piece, last_seq))
        driver.executemany(
            "INSERT INTO messages (buffer_id, id, hash, content, last_seq) VALUES (?, ?, ?, ?, ?)",
            rows,
        )
    return ids


def _pieces(text: str) -> list[str]:
    """Return a text in parts of about the same size, of which some fill a page."""
    n_bytes = len(text) if text.isascii() else len(text.encode())
    size = -(-len(text) // -(-n_bytes // _PIECE_BYTES))
    return [text[start : start + size] for start in range(0, len(text), size)]


# Held and leased steps below the window are still there.
_SQLITE_SWEEP = """
DELETE FROM messages WHERE buffer_id = :id AND last_seq < min(
    coalesce((SELECT min(seq) FROM experiences WHERE buffer_id = :id), 1 << 60),
    coalesce((SELECT min(first_seq) FROM chunks WHERE buffer_id = :id), 1 << 60))
"""
_SQLITE_ERASE = """
DELETE FROM messages WHERE buffer_id = :id AND id NOT IN (
    SELECT m.id FROM experiences e CROSS JOIN json_each(e.message_ids) r CROSS JOIN messages m
    ON m.buffer_id = :id AND m.id >= r.value
    AND m.id < r.value + json_extract(e.message_ids, '$[' || (r.key + 1) || ']')
    WHERE e.buffer_id = :id AND e.message_ids IS NOT NULL AND r.key % 2 = 0 AND r.value > 0
    UNION ALL
    SELECT m.id FROM chunk_data d CROSS JOIN json_each(d.payloads) p
    CROSS JOIN json_each(p.value, '$.message_ids') r CROSS JOIN messages m
    ON m.buffer_id = :id AND m.id >= r.value
    AND m.id < r.value + json_extract(p.value, '$.message_ids[' || (r.key + 1) || ']')
    WHERE d.buffer_id = :id AND d.payloads IS NOT NULL AND p.type = 'object'
    AND r.key % 2 = 0 AND r.value > 0 AND NOT EXISTS (
        SELECT 1 FROM deleted_steps g
        WHERE g.buffer_id = d.buffer_id AND g.seq = d.first_seq + p.key))
"""


def _sqlite_sweep(driver: sqlite3.Connection, buffer_id: int) -> None:
    """Remove messages that no step uses any more."""
    driver.execute(_SQLITE_SWEEP, {"id": buffer_id})


def _postgresql_ids_of(
    connection: Connection, buffer_id: int, texts: Mapping[bytes, str], high: int
) -> dict[bytes, tuple[int, int]]:
    # In one order: writers that wait for each other would not end.
    driver, hashes = driver_of(connection), sorted(texts)
    ((found,),) = driver.execute(
        "SELECT sqlbuffer_find_messages_v1(%s::integer, %s::bytea[], %s::bigint)",
        (buffer_id, hashes, high),
    )
    ids = {hash_: (id_, 1) for hash_, id_ in zip(hashes, found, strict=True) if id_ is not None}
    # In the order of the conversation: its messages get consecutive ids.
    new = [hash_ for hash_ in texts if hash_ not in ids]
    if new:
        ((made,),) = driver.execute(
            "SELECT sqlbuffer_add_messages_v1(%s::integer, %s::bytea[], %s::text[], %s::bigint)",
            (buffer_id, new, [texts[hash_] for hash_ in new], high),
        )
        ids |= {hash_: (id_, 1) for hash_, id_ in zip(new, made, strict=True)}
    return ids


def _sqlite_erase_unused(connection: Connection, buffer_id: int) -> None:
    """Remove all messages that no step uses any more; it looks at the ids of all steps."""
    driver_of(connection).execute(_SQLITE_ERASE, {"id": buffer_id})


def _postgresql_erase_unused(connection: Connection, buffer_id: int) -> None:
    driver_of(connection).execute("SELECT sqlbuffer_erase_messages_v1(%s::integer)", (buffer_id,))


erase_unused = by_database(sqlite=_sqlite_erase_unused, postgresql=_postgresql_erase_unused)
_read_contents = by_database(sqlite=_sqlite_contents, postgresql=_postgresql_contents)
_ids_of = by_database(sqlite=_sqlite_ids_of, postgresql=_postgresql_ids_of)


def _contents(connection: Connection, buffer_id: int, lists: Iterable[Sequence[int]]) -> Contents:
    ids: set[int] = set()
    for runs in lists:
        for first, n in zip(runs[::2], runs[1::2], strict=True):
            if first:
                ids.update(range(first, first + n))
    rows = _read_contents(connection, buffer_id, sorted(ids)) if ids else ()
    return {id_: (bool(begins), content) for id_, begins, content in rows}
