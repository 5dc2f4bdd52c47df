"""Small documents of a buffer: JSON values by key, which several processes change safely."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    select,
    text,
    update,
)

from sqlbuffer.checks import checked_flag, checked_instance, checked_integer, checked_items
from sqlbuffer.codec.decoder import decode
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.display import shown_size
from sqlbuffer.encoding.records import encode_key
from sqlbuffer.errors import DocumentChangedError, FieldError
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import documents
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import (
    answer,
    driver_of,
    joined,
    joined_connection,
    snapshot,
)
from sqlbuffer.storage.dialects import at_once, by_database
from sqlbuffer.storage.schema.expressions import KeyList, is_one_of, utc_now
from sqlbuffer.storage.schema.metadata import json_parameter

T = TypeVar("T")
MAX_BYTES = 2**20
MAX_KEYS = 2**20  # in one call

_D = documents.c
_ADD = text(
    "INSERT INTO documents (buffer_id, key, version, value) "
    "VALUES (:buffer_id, :key, :version, :value) ON CONFLICT (buffer_id, key) DO NOTHING"
)
_PUT_ANY = text(
    "INSERT INTO documents (buffer_id, key, version, value) "
    "VALUES (:buffer_id, :key, 1, :value) ON CONFLICT (buffer_id, key) DO UPDATE SET "
    "version = documents.version + 1, value = excluded.value, changed_at = excluded.changed_at "
    "RETURNING version"
)
# Made once: to make one takes longer than to run it.
_OF_BUFFER = _D.buffer_id == bindparam("of_buffer", type_=Integer())
_OWN = (_OF_BUFFER, _D.key == bindparam("own_key", type_=Text()))
_HAS_VERSION = _D.version == bindparam("before", type_=BigInteger())
_VERSION = select(_D.version).where(*_OWN)
_PUT_VERSION = (
    update(documents)
    .where(*_OWN, _HAS_VERSION)
    .values(value=json_parameter("new"), version=_D.version + 1, changed_at=utc_now())
    .returning(_D.version)
)
_DELETE = delete(documents).where(*_OWN)
_DELETE_VERSION = _DELETE.where(_HAS_VERSION)
_AMONG = (_OF_BUFFER, is_one_of(_D.key, bindparam("own_keys", type_=KeyList())))
_DELETE_MANY = delete(documents).where(*_AMONG)
_ALL_FROM = (
    select(_D.key, cast(_D.value, Text), _D.version)
    .where(_OF_BUFFER, _D.key >= bindparam("first", type_=Text()))
    .order_by(_D.key)
)
_ALL_UP_TO = _ALL_FROM.where(_D.key < bindparam("behind", type_=Text()))
_KEYS = select(_D.key).where(_OF_BUFFER, _D.key >= bindparam("first", type_=Text()))
_KEYS_UP_TO = _KEYS.where(_D.key < bindparam("behind", type_=Text()))
_HIGHEST, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)
_LOCKED_BUFFER = {
    "sqlite": "SELECT deletions FROM buffers WHERE id = ?",
    "postgresql": "SELECT deletions FROM buffers WHERE id = %s FOR NO KEY UPDATE",
}
# In the order of the keys, so that no two processes that lock several wait for each other. For the
# driver: SQLAlchemy takes several times as long as SQLite.
_OF_KEYS_SQLITE = (
    "SELECT key, value, version{more} FROM documents "
    "WHERE buffer_id = ? AND key IN (SELECT value FROM json_each(?)) ORDER BY key"
)
_DELETIONS_SQLITE = ", (SELECT deletions FROM buffers WHERE id = documents.buffer_id)"
_OF_KEYS_POSTGRESQL = (
    "SELECT d.key, d.value::text, d.version{more} "
    "WHERE d.buffer_id = %s AND d.key = ANY (%s::text[]) ORDER BY d.key{locking}"
)
_DELETIONS_POSTGRESQL = ", b.deletions FROM buffers b JOIN documents d ON d.buffer_id = b.id"
# Keys that can be a part of the text of a statement as they are.
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_./ -]{1,200}")
_AHEAD = (
    "SELECT b.deletions, d.key, d.version, CAST(d.value AS TEXT) FROM buffers b "
    "LEFT JOIN documents d "
    "ON d.buffer_id = b.id AND d.buffer_id = {buffer_id:d} AND {of_keys} WHERE b.id = {buffer_id:d}"
)

_PUT_SQLITE = (
    "INSERT INTO documents (buffer_id, key, version, value) VALUES (?, ?, 1, ?) "
    "ON CONFLICT (buffer_id, key) DO UPDATE SET version = documents.version + 1, "
    "value = excluded.value, changed_at = excluded.changed_at"
)
_PUT_POSTGRESQL = (
    "INSERT INTO documents (buffer_id, key, version, value) "
    "SELECT %s, d.key, 1, d.json::jsonb FROM unnest(%s::text[], %s::text[]) AS d(key, json) "
    "ON CONFLICT (buffer_id, key) DO UPDATE SET version = documents.version + 1, "
    "value = excluded.value, changed_at = excluded.changed_at"
)


def _put_sqlite(connection: Connection, buffer_id: int, pairs: Sequence[tuple[str, str]]) -> None:
    """Write documents, given by key and JSON."""
    rows = [(buffer_id, key, json) for key, json in pairs]
    driver_of(connection).executemany(_PUT_SQLITE, rows)


def _put_postgresql(
    connection: Connection, buffer_id: int, pairs: Sequence[tuple[str, str]]
) -> None:
    """Write documents, given by key and JSON."""
    keys, values = [key for key, _ in pairs], [json for _, json in pairs]
    driver_of(connection).execute(_PUT_POSTGRESQL, (buffer_id, keys, values))


put_documents = by_database(sqlite=_put_sqlite, postgresql=_put_postgresql)


@dataclass(frozen=True)
class Document:
    """A document as it is stored.

    Attributes:
        key: Its name.
        value: Its value.
        version: 1, and one more with each change.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> documents = ReplayBuffer("sqlite://").documents
        >>> documents.put("notes", ["first"])
        1
        >>> document = documents.get("notes")
        >>> document.value, document.version
        (['first'], 1)
    """

    key: str
    value: Any
    version: int


class Documents:
    """The documents of a buffer: small JSON values by key.

    They are for state that belongs to the steps and changes with them, such as a cursor. A change
    can depend on the version that was read (`version`), so that no process overwrites what another
    one has written since. In `ReplayBuffer.transaction` they change together with the steps.

    Args:
        buffer: The buffer.
        calling: Function that makes each call, such as in a transaction; None: each is one.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> documents = ReplayBuffer("sqlite://").documents
        >>> documents.put("cursor", {"row": 10})
        1
        >>> documents.get("cursor")
        Document(key='cursor', value={'row': 10}, version=1)
        >>> documents.put("cursor", {"row": 20}, version=1)
        2
        >>> documents.keys("cur"), documents.delete("cursor", version=2), documents.keys()
        (['cursor'], True, [])
    """

    def __init__(
        self, buffer: OpenBuffer, calling: Callable[[Callable[[], Any]], Any] | None = None
    ) -> None:
        self._buffer, self._calling = buffer, calling

    def _call(self, call: Callable[[], T]) -> T:
        if self._calling is None:
            return call()
        result: T = self._calling(call)
        return result

    def _read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of a read of one statement."""
        buffer = self._buffer

        connection = joined_connection(buffer.engine)
        if connection is not None:
            with translated(buffer.url):
                return work(connection)

        def look() -> T:
            with translated(buffer.url), at_once(buffer.engine) as connection:
                return work(connection)

        return buffer.with_retries(look)

    def get(self, key: str, *, lock: bool = False) -> Document | None:
        """Return a document; None if there is none.

        Args:
            key: Its name.
            lock: In a transaction: no other process changes the document before it ends. SQLite has
                one writer at a time, so that holds there in any case.

        Raises:
            ArgumentError: `lock` is not True or False.
            FieldError: The key is not text that a database can store.
        """

        def read(connection: Connection) -> Document | None:
            locking = " FOR UPDATE" if checked_flag(lock, "lock") else ""
            rows = _of_keys(connection, self._buffer.info.id, [encode_key(key, "key")], locking)
            return Document(key, decode(rows[0][1], None), rows[0][2]) if rows else None

        return self._call(lambda: self._read(read))

    def get_many(
        self, keys: Iterable[str] | None = None, *, prefix: str = "", lock: bool = False
    ) -> dict[str, Document]:
        """Return several documents by their names, in order, read in one statement.

        Args:
            keys: Their names; None: all that begin with `prefix`. Names without a document are left
                out of the result.
            prefix: Beginning of the names, if `keys` is None.
            lock: See `get`. The documents are locked in the order of their names.

        Raises:
            ArgumentError: `keys` is not a list, or `lock` is not True or False.
            FieldError: A key or the prefix is not text that a database can store.

        Example:
            >>> from sqlbuffer import ReplayBuffer
            >>> documents = ReplayBuffer("sqlite://").documents
            >>> documents.put_many({"page/0": [1, 2], "page/1": [3]})
            >>> documents.get_many(["page/1", "page/2"])
            {'page/1': Document(key='page/1', value=[3], version=1)}
            >>> list(documents.get_many(prefix="page/"))
            ['page/0', 'page/1']
        """

        def read(connection: Connection) -> dict[str, Document]:
            is_locked = checked_flag(lock, "lock")
            rows: Sequence[Any]
            if keys is None:
                parameters = self._beginning_with(prefix)
                query = _ALL_UP_TO if "behind" in parameters else _ALL_FROM
                rows = connection.execute(
                    query.with_for_update() if is_locked else query, parameters
                ).all()
            else:
                locking = " FOR UPDATE" if is_locked else ""
                rows = _of_keys(connection, self._buffer.info.id, checked_keys(keys), locking)
            return {key: Document(key, decode(json, None), n) for key, json, n in rows}

        return self._call(lambda: self._read(read))

    def keys(self, prefix: str = "") -> list[str]:
        """Return the names of the documents that begin with a prefix, in order.

        Raises:
            FieldError: The prefix is not text that a database can store.
        """

        def read(connection: Connection) -> list[str]:
            parameters = self._beginning_with(prefix)
            keys = _KEYS_UP_TO if "behind" in parameters else _KEYS
            return list(connection.execute(keys.order_by(_D.key), parameters).scalars())

        return self._call(lambda: self._read(read))

    def put(self, key: str, value: Any, *, version: int | None = None) -> int:
        """Write a document, and return its new version.

        Args:
            key: Its name, up to 1,000 bytes.
            value: JSON of up to 1 MiB; NaN, infinities and times are kept too.
            version: The version that the change replaces, 0 if there must be none yet; None: any.

        Raises:
            ArgumentError: The version is not an integer from 0 on.
            DocumentChangedError: The document has another version; nothing is written.
            FieldError: The key is not text, or the value is not JSON, or too large.
        """

        def work(connection: Connection) -> int:
            return self._put(connection, key, value, _checked(version))

        return self._call(lambda: self._buffer.write(work))

    def _put(self, connection: Connection, key: str, value: Any, before: int | None) -> int:
        json = _json(f"value of document {encode_key(key, 'key')!r}", value)
        row = {"key": key, "value": json, "buffer_id": self._buffer.info.id}
        if before is None:
            return int(connection.execute(_PUT_ANY, row).scalar_one())
        if before == 0:
            if connection.execute(_ADD, {**row, "version": 1}).rowcount == 1:
                return 1
            raise self._changed(connection, key, before)
        result = connection.execute(_PUT_VERSION, {**self._of(key, before), "new": json})
        written: int | None = result.scalar_one_or_none()
        if written is None:
            raise self._changed(connection, key, before)
        return written

    def put_many(self, values: Mapping[str, Any]) -> None:
        """Write several documents in one statement, whatever their versions are.

        Args:
            values: The values by name; see `put`.

        Raises:
            ArgumentError: `values` is not a mapping.
            FieldError: A key is not text, or a value is not JSON, or too large; nothing is written.

        Example:
            >>> from sqlbuffer import ReplayBuffer
            >>> documents = ReplayBuffer("sqlite://").documents
            >>> documents.put_many({"left": 1, "right": 2})
            >>> documents.put_many({"left": 3})
            >>> documents.get("left")
            Document(key='left', value=3, version=2)
        """
        by_key = checked_instance(values, "values", Mapping, "a mapping such as {'a': 1}")
        jsons = sorted(
            (encode_key(key, "key in values"), _json(f"values: value of document {key!r}", value))
            for key, value in by_key.items()
        )

        def work(connection: Connection) -> None:
            put_documents(connection, self._buffer.info.id, jsons)

        if jsons:
            self._call(lambda: self._buffer.write(work))

    def delete(self, key: str, *, version: int | None = None) -> bool:
        """Delete a document; return True if there was one.

        Args:
            key: Its name.
            version: The version that is deleted; None: any.

        Raises:
            ArgumentError: The version is not an integer from 0 on.
            DocumentChangedError: The document has another version; nothing is deleted.
            FieldError: The key is not text that a database can store.
        """

        def work(connection: Connection) -> bool:
            before = _checked(version)
            statement = _DELETE if before is None else _DELETE_VERSION
            if connection.execute(statement, self._of(key, before)).rowcount == 1:
                return True
            if before is not None:
                raise self._changed(connection, key, before)
            return False

        return self._call(lambda: self._buffer.write(work))

    def delete_many(self, keys: Iterable[str]) -> int:
        """Delete several documents in one statement; return how many there were.

        Args:
            keys: Their names.

        Raises:
            ArgumentError: `keys` is not a list.
            FieldError: A key is not text that a database can store.

        Example:
            >>> from sqlbuffer import ReplayBuffer
            >>> documents = ReplayBuffer("sqlite://").documents
            >>> documents.put_many({"a": 1, "b": 2})
            >>> documents.delete_many(["a", "b", "c"])
            2
        """

        def work(connection: Connection) -> int:
            return connection.execute(_DELETE_MANY, self._among(keys)).rowcount

        return self._call(lambda: self._buffer.write(work))

    def _beginning_with(self, prefix: str) -> dict[str, Any]:
        """Return the parameters that say which documents begin with a prefix."""
        first = encode_key(prefix, "prefix")
        behind = _behind(first)
        parameters = {"of_buffer": self._buffer.info.id, "first": first}
        return parameters if behind is None else {**parameters, "behind": behind}

    def _among(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the parameters that say which documents."""
        return {"of_buffer": self._buffer.info.id, "own_keys": checked_keys(keys)}

    def _of(self, key: str, before: int | None = None) -> dict[str, Any]:
        """Return the parameters that say which document, and which version of it."""
        parameters = {"of_buffer": self._buffer.info.id, "own_key": encode_key(key, "key")}
        return parameters if before is None else {**parameters, "before": before}

    def _changed(
        self, connection: Connection, key: str, before: int | None
    ) -> DocumentChangedError:
        """Return the error for a document that has another version."""
        now = connection.execute(_VERSION, self._of(key)).scalar_one_or_none()
        has = "there is no such document" if now is None else f"it has version {now}"
        wanted = "none was expected" if before == 0 else f"version {before} was expected"
        return DocumentChangedError(
            f"document {key!r} of buffer {self._buffer.info.name!r}: {has}, and {wanted}; read it "
            f"again, and repeat the change with its version"
        )


def read_at_once(
    buffer: OpenBuffer,
    keys: Sequence[str],
    work: Callable[[Connection, dict[str, Document], int], T],
) -> T:
    """Return the result of `work` on one state of the database; again after a lost connection.

    Args:
        buffer: The buffer.
        keys: Names of documents that are read with the begin of the transaction, in one message to
            the server.
        work: Function of the connection, of these documents and of the number of deletions.
    """
    others = [key for key in keys if not _PLAIN_KEY.fullmatch(key)]
    plain = [key for key in keys if key not in others] if others else keys
    # No parameters can be sent with the begin: these keys have no quotes.
    listed = ", ".join(f"'{key}'" for key in plain)
    of_keys = f"d.key IN ({listed})" if plain else "1 = 0"
    query = _AHEAD.format(buffer_id=buffer.info.id, of_keys=of_keys)

    def look() -> T:
        with translated(buffer.url), snapshot(buffer.engine, query) as connection:
            rows = answer(connection)
            if not rows:
                raise buffer.dropped()
            prefetched = {
                key: Document(key, decode(value, None), version)
                for _, key, version, value in rows
                if key is not None
            }
            if others:
                with joined(connection):
                    prefetched |= Documents(buffer).get_many(others)
            return work(connection, prefetched, rows[0][0])

    return buffer.with_retries(look)


def _of_keys_sqlite(
    connection: Connection,
    buffer_id: int,
    keys: Sequence[str],
    _locking: str = "",
    *,
    with_deletions: bool = False,
) -> Sequence[Any]:
    more = _DELETIONS_SQLITE if with_deletions else ""
    statement = _OF_KEYS_SQLITE.format(more=more)
    rows: Sequence[Any]
    rows = driver_of(connection).execute(statement, (buffer_id, json.dumps(keys))).fetchall()
    return rows


def _of_keys_postgresql(
    connection: Connection,
    buffer_id: int,
    keys: Sequence[str],
    locking: str = "",
    *,
    with_deletions: bool = False,
) -> Sequence[Any]:
    more = _DELETIONS_POSTGRESQL if with_deletions else " FROM documents d"
    statement = _OF_KEYS_POSTGRESQL.format(more=more, locking=locking)
    rows: Sequence[Any]
    rows = driver_of(connection).execute(statement, (buffer_id, keys)).fetchall()
    return rows


_of_keys = by_database(sqlite=_of_keys_sqlite, postgresql=_of_keys_postgresql)


def locked_documents(
    connection: Connection, buffer: OpenBuffer, keys: Sequence[str]
) -> tuple[dict[str, Document], int]:
    """Lock documents; return them, and the number of deletions, which no other process changes."""
    rows = (
        _of_keys(connection, buffer.info.id, keys, " FOR NO KEY UPDATE", with_deletions=True)
        if keys
        else []
    )
    by_key = {key: Document(key, decode(value, None), n) for key, value, n, _ in rows}
    if rows:
        return by_key, rows[0][3]
    statement = _LOCKED_BUFFER[connection.dialect.name]
    row = driver_of(connection).execute(statement, (buffer.info.id,)).fetchone()
    if row is None:
        raise buffer.dropped()
    n_deletions: int = row[0]
    return by_key, n_deletions


def stored_documents(connection: Connection, buffer_id: int) -> list[tuple[str, int, str]]:
    """Return the key, the version and the JSON of each document of a buffer."""
    query = select(_D.key, _D.version, cast(_D.value, Text)).where(_D.buffer_id == buffer_id)
    return [(key, version, value) for key, version, value in connection.execute(query)]


def add_documents(
    connection: Connection, buffer_id: int, stored: Sequence[tuple[str, int, str]]
) -> None:
    """Write documents, as `stored_documents` returns them, that a buffer does not have."""
    rows = [
        {"buffer_id": buffer_id, "key": key, "version": version, "value": value}
        for key, version, value in stored
    ]
    if rows:
        connection.execute(_ADD, rows)


def checked_keys(keys: Any, name: str = "keys") -> list[str]:
    """Return the names of documents, in order, each once.

    Raises:
        ArgumentError: They are not a list of names.
        FieldError: One is not text that a database can store.
    """
    listed = checked_items(keys, name, "a list of names such as ['a', 'b']", MAX_KEYS)
    label = f"each of {name}"
    return sorted({encode_key(key, label) for key in listed})


def _json(what: str, value: Any) -> str:
    encoder = Encoder()
    json = encoder.json(value, what)
    if encoder.blob:
        raise FieldError(f"{what}: arrays and bytes are not kept; give JSON values")
    json = "null" if json is None else json
    n_bytes = len(json.encode())
    if n_bytes > MAX_BYTES:
        raise FieldError(
            f"{what}: it has {shown_size(n_bytes)}, and documents have up to "
            f"{shown_size(MAX_BYTES)}; store larger values as steps"
        )
    return json


def _behind(prefix: str) -> str | None:
    """Return the first key after all that begin with a prefix; None: there is none."""
    while prefix:
        before, last = prefix[:-1], ord(prefix[-1])
        if last < _HIGHEST:
            following = last + 1
            return before + chr(following if following not in _SURROGATES else _SURROGATES.stop)
        prefix = before
    return None


def _checked(version: Any) -> int | None:
    return None if version is None else checked_integer(version, "version", 0)
