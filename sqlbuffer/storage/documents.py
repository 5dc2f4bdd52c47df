"""Small documents of a buffer: JSON values by key, which several processes change safely."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Text,
    cast,
    delete,
    func,
    literal,
    select,
    text,
    update,
)

from sqlbuffer.checks import checked_flag, checked_integer
from sqlbuffer.codec.decoder import decode
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.encoding.records import encode_key
from sqlbuffer.errors import DocumentChangedError, FieldError
from sqlbuffer.sizes import shown_size
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import documents
from sqlbuffer.storage.schema.metadata import JSON
from sqlbuffer.storage.schema.server_clock import utc_now

T = TypeVar("T")
MAX_BYTES = 2**20

_D = documents.c
_ADD = text(
    "INSERT INTO documents (buffer_id, key, version, value) "
    "VALUES (:buffer_id, :key, :version, :value) ON CONFLICT (buffer_id, key) DO NOTHING"
)


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
            own = select(_D.key, cast(_D.value, Text), _D.version).where(*self._is(key))
            if checked_flag(lock, "lock"):
                own = own.with_for_update()
            row = connection.execute(own).one_or_none()
            return None if row is None else Document(row[0], decode(row[1], None), row[2])

        return self._call(lambda: self._buffer.read(read))

    def keys(self, prefix: str = "") -> list[str]:
        """Return the names of the documents that begin with a prefix, in order.

        Raises:
            FieldError: The prefix is not text that a database can store.
        """

        def read(connection: Connection) -> list[str]:
            starts = func.substr(_D.key, 1, len(encode_key(prefix, "prefix"))) == prefix
            own = _D.buffer_id == self._buffer.info.id
            keys = select(_D.key).where(own, starts).order_by(_D.key)
            return list(connection.execute(keys).scalars())

        return self._call(lambda: self._buffer.read(read))

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
        json = _json(encode_key(key, "key"), value)
        if not before:
            given = {"key": key, "version": 1, "value": json, "buffer_id": self._buffer.info.id}
            if connection.execute(_ADD, given).rowcount == 1:
                return 1
            if before == 0:
                raise self._changed(connection, key, before)
        new = {"value": cast(literal(json), JSON), "version": _D.version + 1}
        own = update(documents).where(*self._is(key)).values(**new, changed_at=utc_now())
        if before is not None:
            own = own.where(_D.version == before)
        written: int | None = connection.execute(own.returning(_D.version)).scalar_one_or_none()
        if written is None:
            raise self._changed(connection, key, before)
        return written

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
            own = delete(documents).where(*self._is(key))
            if before is None:
                return connection.execute(own).rowcount == 1
            if connection.execute(own.where(_D.version == before)).rowcount != 1:
                raise self._changed(connection, key, before)
            return True

        return self._call(lambda: self._buffer.write(work))

    def _is(self, key: str) -> tuple[Any, Any]:
        return _D.buffer_id == self._buffer.info.id, _D.key == encode_key(key, "key")

    def _changed(
        self, connection: Connection, key: str, before: int | None
    ) -> DocumentChangedError:
        """Return the error for a document that has another version."""
        now = connection.execute(select(_D.version).where(*self._is(key))).scalar_one_or_none()
        has = "there is no such document" if now is None else f"it has version {now}"
        wanted = "none was expected" if before == 0 else f"version {before} was expected"
        return DocumentChangedError(
            f"document {key!r} of buffer {self._buffer.info.name!r}: {has}, and {wanted}; read it "
            f"again, and repeat the change with its version"
        )


def stored_documents(connection: Connection, buffer_id: int) -> list[tuple[str, int, str]]:
    """Return the key, the version and the JSON of each document of a buffer."""
    own = select(_D.key, _D.version, cast(_D.value, Text)).where(_D.buffer_id == buffer_id)
    return [(key, version, value) for key, version, value in connection.execute(own)]


def add_documents(
    connection: Connection, buffer_id: int, given: Sequence[tuple[str, int, str]]
) -> None:
    """Write documents, as `stored_documents` returns them, that a buffer does not have."""
    rows = [
        {"buffer_id": buffer_id, "key": key, "version": version, "value": value}
        for key, version, value in given
    ]
    if rows:
        connection.execute(_ADD, rows)


def _json(key: str, value: Any) -> str:
    encoder = Encoder()
    json = encoder.json(value, f"value of document {key!r}")
    if encoder.blob:
        raise FieldError(
            f"value of document {key!r}: arrays and bytes are not kept; give JSON values"
        )
    json = "null" if json is None else json
    n_bytes = len(json.encode())
    if n_bytes > MAX_BYTES:
        raise FieldError(
            f"value of document {key!r}: it has {shown_size(n_bytes)}, and documents have up to "
            f"{shown_size(MAX_BYTES)}; store larger values as steps"
        )
    return json


def _checked(version: Any) -> int | None:
    return None if version is None else checked_integer(version, "version", 0)
