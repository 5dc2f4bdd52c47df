"""`FragmentStore`: fragments by id."""

import uuid
from collections.abc import Sequence
from typing import Any

from sqlbuffer.compat.minestudio.argument_checks import key
from sqlbuffer.compat.minestudio.config import location
from sqlbuffer.compat.minestudio.datatypes import FragmentMetadata, SampleFragment
from sqlbuffer.compat.minestudio.errors import (
    FragmentError,
    FragmentNotFoundError,
    FragmentTypeError,
)
from sqlbuffer.compat.minestudio.fragment_codec import decoded, encoded, wanted_of
from sqlbuffer.compat.minestudio.opening import NAME, plain_store
from sqlbuffer.encoding.records import Decoder, Record
from sqlbuffer.errors import FieldError
from sqlbuffer.storage.extensions.fragments import pool
from sqlbuffer.storage.extensions.fragments.fragment_reading import FragmentReader, delete
from sqlbuffer.storage.extensions.fragments.versions import clear
from sqlbuffer.storage.rows.payload_parts import check_row_sizes, prepared, row_limit
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.writing.write_batch import WriteBatch


class FragmentStore:
    """Fragments by id. A fragment that is added only here is in no chunk and stays until deleted.

    Args:
        path: A folder, as in `database_config`.
        num_shards: Taken and ignored.
        url: A database URL in place of a folder.
        name: One database holds many buffers.

    Example:
        >>> store = FragmentStore(url="sqlite://")
        >>> store.get_disk_space()
        0
    """

    def __init__(
        self,
        path: str | None = None,
        num_shards: int | None = None,
        *,
        url: Any = None,
        name: str = NAME,
    ) -> None:
        self._attach(plain_store(location(path, url), name))

    def _attach(self, store: BufferStore) -> None:
        self._store, self._reader = store, FragmentReader(store)
        self._decoder = Decoder(layout=store.layout)

    @classmethod
    def of(cls, store: BufferStore) -> "FragmentStore":
        """Return the fragments of an opened buffer."""
        made = cls.__new__(cls)
        made._attach(store)
        return made

    def add_fragment(self, fragment: SampleFragment) -> str:
        """Store a fragment and return its id, a UUID.

        Raises:
            FragmentError: A value that cannot be stored, named by its path.
            StorageFullError: The disk is full; nothing was stored.
        """
        id_ = str(uuid.uuid4())
        worker, fid = getattr(fragment, "worker_uuid", ""), getattr(fragment, "fid_in_worker", 0)
        record = encoded(fragment, FragmentMetadata(-1, "", worker, fid), id_)
        self.check_size(record)
        self._store.writer.store(WriteBatch(prepared([record], self._store.layout)))
        return id_

    def check_size(self, record: Record) -> None:
        """Raise where a fragment is larger than the buffer takes.

        :meta private:
        """
        try:
            check_row_sizes([record], row_limit(self._store.info.config), "")
        except FieldError as error:
            raise FragmentError(str(error)) from None

    def get_fragment(
        self, fragment_uuid: str, fields: Sequence[str] | None = None
    ) -> SampleFragment:
        """Return a fragment.

        Args:
            fragment_uuid: Its id.
            fields: Fields to read, by dotted names such as `["reward", "obs.image"]`; the others
                are None. All by default.

        Raises:
            FragmentNotFoundError: There is no fragment with that id.
            FragmentError: A field is unknown.
        """
        payloads, decoder = self._store.source.whole_rows, self._decoder
        if fields is not None:
            payloads = self._store.source.payloads(wanted_of(fields))
        row = self._reader.row(_checked_id(fragment_uuid), payloads)
        if row is None:
            raise self._missing(fragment_uuid)
        return decoded(decoder.row(row), fields)

    def delete_fragment(self, fragment_uuid: str) -> None:
        """Delete a fragment; a chunk that it is part of is fetched no more.

        Raises:
            FragmentNotFoundError: There is none of that id.
            FragmentError: The id is not text, or cannot be stored as text.
        """
        if not delete(self._store, _checked_id(fragment_uuid)):
            raise self._missing(fragment_uuid)

    def clear(self) -> None:
        """Delete all fragments, and with them chunks and prepared lists."""
        if pool.find_rules(self._store) is None:
            self._store.retention.clear()
        else:
            clear(self._store)

    def get_disk_space(self) -> int:
        """Return the bytes of all payloads; the database has a little more."""
        return self._reader.size_bytes()

    def close(self) -> None:
        """Close this process's idle connections; a later call opens new ones."""
        self._store.close()

    def __enter__(self) -> "FragmentStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _missing(self, fragment_uuid: str) -> FragmentNotFoundError:
        return FragmentNotFoundError(
            f"buffer {self._store.info.name!r} has no fragment {fragment_uuid!r}: fragments leave "
            f"with their chunk, and those of a prepared list when the next fetch has completed"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self._store}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._attach(state["store"])


def _checked_id(fragment_uuid: Any) -> str:
    if not isinstance(fragment_uuid, str):
        raise FragmentTypeError(f"a fragment is named by text, got {fragment_uuid!r}")
    return key(fragment_uuid, "fragment_id")
