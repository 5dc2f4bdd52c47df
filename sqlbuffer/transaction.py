"""What a function does in one transaction of a buffer."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.errors import ArgumentError
from sqlbuffer.steps.store_result import StoreResult
from sqlbuffer.storage.database.transactions import held, joined
from sqlbuffer.storage.documents import Document, Documents

T = TypeVar("T")
P = ParamSpec("P")


def _joining(
    method: Callable[Concatenate[ReplayBuffer, P], T],
) -> "Callable[Concatenate[Transaction, P], T]":
    """Return a method of a buffer that takes part in a transaction."""

    @wraps(method)
    def call(self: "Transaction", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.joined(lambda: method(self.buffer, *args, **kwargs))

    return call


class Transaction:
    """The calls of a buffer that `ReplayBuffer.transaction` makes in one transaction.

    Each call does what the one of the buffer does, and sees what those before it have written.
    Other processes see nothing before the transaction ends. An error of a call undoes the whole
    transaction, also where `work` catches it.

    Attributes:
        buffer: The buffer.
        documents: Its documents, read and written in the transaction.

    Example:
        >>> buffer = ReplayBuffer("sqlite://")
        >>> def replace(tx):
        ...     stored = tx.extend({"state": [1, 2]}, task_id="new")
        ...     return stored.inserted, tx.delete({"field": "task_id", "op": "eq", "value": "old"})
        >>> buffer.add(state=0, task_id="old").inserted
        1
        >>> buffer.transaction(replace), len(buffer)
        ((2, 1), 2)
    """

    def __init__(self, buffer: ReplayBuffer, connection: Connection) -> None:
        self.buffer, self._connection = buffer, connection
        self.documents = JoinedDocuments(self)
        self._error: BaseException | None = None
        self._is_open, self._n_stored = True, 0

    store = _joining(ReplayBuffer.store)
    store_batch = _joining(ReplayBuffer.store_batch)
    extend = _joining(ReplayBuffer.extend)
    store_episode = _joining(ReplayBuffer.store_episode)
    annotate = _joining(ReplayBuffer.annotate)
    quarantine = _joining(ReplayBuffer.quarantine)
    release = _joining(ReplayBuffer.release)
    delete = _joining(ReplayBuffer.delete)
    size = _joining(ReplayBuffer.size)
    get_paginated = _joining(ReplayBuffer.get_paginated)
    get_by_task_id = _joining(ReplayBuffer.get_by_task_id)
    get_batch_by_task_ids = _joining(ReplayBuffer.get_batch_by_task_ids)

    def joined(self, call: Callable[[], T]) -> T:
        """Return the result of a call whose reads and writes are part of the transaction.

        :meta private:
        """
        if not self._is_open:
            raise ArgumentError("the transaction has ended: use tx only inside of work(tx)")
        if self._error is not None:
            raise self._error
        try:
            with joined(self._connection):
                result = call()
        except BaseException as error:
            self._error = error
            raise
        if isinstance(result, StoreResult):
            self._n_stored += result.inserted
        return result

    def run(self, work: "Callable[[Transaction], T]") -> tuple[T, int]:
        """Return the result of `work`, and how many steps it has stored.

        :meta private:
        """
        try:
            with held(self._connection):
                result = work(self)
        finally:
            self._is_open = False
        if self._error is not None:
            raise self._error
        return result, self._n_stored


class JoinedDocuments:
    """The documents of a buffer in a transaction; the methods are those of `Documents`."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def _joined(self, call: Callable[[Documents], T]) -> T:
        own = self._transaction
        return own.joined(lambda: call(own.buffer.documents))

    def get(self, key: str, *, lock: bool = False) -> Document | None:
        """See `Documents.get`."""
        return self._joined(lambda documents: documents.get(key, lock=lock))

    def keys(self, prefix: str = "") -> list[str]:
        """See `Documents.keys`."""
        return self._joined(lambda documents: documents.keys(prefix))

    def put(self, key: str, value: Any, *, version: int | None = None) -> int:
        """See `Documents.put`."""
        return self._joined(lambda documents: documents.put(key, value, version=version))

    def delete(self, key: str, *, version: int | None = None) -> bool:
        """See `Documents.delete`."""
        return self._joined(lambda documents: documents.delete(key, version=version))
