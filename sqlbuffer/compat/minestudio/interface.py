"""`ReplayBufferInterface`: the buffer of MineStudio's online training."""

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sqlbuffer.compat.minestudio import argument_checks, chunk_wait
from sqlbuffer.compat.minestudio.config import Config
from sqlbuffer.compat.minestudio.datatypes import FragmentIndex, FragmentMetadata, SampleFragment
from sqlbuffer.compat.minestudio.errors import FragmentAssertionError
from sqlbuffer.compat.minestudio.fragment_codec import encoded, n_bytes
from sqlbuffer.compat.minestudio.fragment_store import FragmentStore
from sqlbuffer.compat.minestudio.metrics import metrics
from sqlbuffer.compat.minestudio.opening import NAME, database_config, open_existing, open_or_make
from sqlbuffer.encoding.records import Record
from sqlbuffer.steps import StoreResult
from sqlbuffer.storage.extensions.fragments import fetching, fragment_reading, versions
from sqlbuffer.storage.extensions.fragments.adding import (
    Added,
    Fragment,
    NotInOrderError,
    SentBeforeError,
    add,
)
from sqlbuffer.storage.extensions.fragments.deleting import delete_left
from sqlbuffer.storage.extensions.fragments.pool import Pool
from sqlbuffer.storage.rows.payload_parts import prepared
from sqlbuffer.storage.writing.row_writer import Insert
from sqlbuffer.storage.writing.write_batch import WriteBatch

logger = logging.getLogger("sqlbuffer")

# Number of chunks that an add deletes: usually one leaves with it, and sometimes many together. A
# fetch deletes twice the number that it prepares, plus this number.
DELETED_BY_ADD, DELETED_BY_FETCH = 8, 64

Report = Callable[[dict[str, float]], None]


class ReplayBufferInterface:
    """Fragments of rollout workers, handed out in chunks, on a SQL database.

    Every process makes its own object, which may be pickled. All state is in the database, so it
    survives restarts.

    Args:
        config: The configuration of the buffer, a dict or a DictConfig (see `Config`). An existing
            buffer is opened if it was made with the same configuration. Omitted: open an existing
            buffer.
        url: Database URL, in place of `database_config`. Omitted, without config too:
            `SQLBUFFER_URL`.
        name: One database holds many buffers.
        seed: Makes the choices of this object repeat for the same calls; nothing else does.
        report: Called with `stats()` after each fetch, and every `fragments_per_report` fragments
            in the process that added the last.

    Attributes:
        store: The fragments by id.
        database_config: Where the buffer is: `FragmentStore(**database_config)` opens it.

    Raises:
        FragmentError: The config is invalid or differs from the stored one, or there is no buffer.

    Example:
        >>> from sqlbuffer.compat.minestudio import FragmentMetadata, SampleFragment
        >>> buffer = ReplayBufferInterface(
        ...     {"max_chunks": 100, "max_staleness": 2, "max_reuse": 2, "fragments_per_chunk": 1},
        ...     url="sqlite://",
        ... )
        >>> buffer.update_model_version("session", 1)
        >>> reward, done = np.ones(4, np.float32), np.zeros(4, bool)
        >>> fragment = SampleFragment(
        ...     obs={"x": reward}, action={"a": reward}, next_done=done, reward=reward, first=done,
        ...     in_state=[], worker_uuid="w", fid_in_worker=0, next_obs={"x": 1.0},
        ...     episode_uuids=["e"] * 4,
        ... )
        >>> buffer.add_fragment(fragment, FragmentMetadata(1, "session", "w", 0))
        >>> [(index, id_)] = buffer.fetch_fragments(1, timeout=0)
        >>> index, float(buffer.load_fragment(id_).reward.sum())
        (FragmentIndex(worker_uuid='w', fid_in_worker=0), 4.0)
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        url: Any = None,
        name: str = NAME,
        seed: int | None = None,
        report: Report | None = None,
    ) -> None:
        self._seed, self._n_fetched = argument_checks.seed(seed), 0
        self._report = argument_checks.report(report)
        parsed = None if config is None else Config.parse(config)
        if parsed is None:
            store, self._rules = open_existing(url, name)
        else:
            store, self._rules = open_or_make(parsed, url, name)
        self.store = FragmentStore.of(store)
        self._core = store
        self._reader = fragment_reading.FragmentReader(store)
        self.database_config = database_config(store, parsed)

    @property
    def actor(self) -> "ReplayBufferInterface":
        """This object: what MineStudio's actor does is done in the database, by calling it."""
        return self

    def get_database_config(self) -> dict[str, Any]:
        """Return where the buffer is."""
        return dict(self.database_config)

    def add_fragment(self, fragment: SampleFragment, metadata: FragmentMetadata) -> None:
        """Store a fragment, with all that the buffer decides by, in one transaction.

        A fragment that is too old or of another session than the current one is dropped. One whose
        number leaves others out begins a chunk of its own, and is logged and counted as a gap; what
        waited for the missing ones is dropped. One that is sent twice is stored once.

        Args:
            fragment: The fragment.
            metadata: Version and session of its first step; worker and number as the fragment's.

        Raises:
            FragmentAssertionError: The worker has sent a later number, or this one with other
                content; nothing is stored.
            FragmentError: A value that cannot be stored, named by its path.
            StorageFullError: The disk is full; nothing is stored.
        """
        given = argument_checks.metadata(metadata, fragment)
        id_ = _id_of(given)
        record = encoded(fragment, given, id_)
        self.store.check_size(record)
        added = self._stored(record, given)
        if added.pool is not None:
            delete_left(self._core, DELETED_BY_ADD)
            self._after_add(added, given)

    def _stored(self, record: Record, given: FragmentMetadata) -> Added:
        size = n_bytes(record)
        batch = WriteBatch(prepared([record], self._core.layout), frozenset(("execute_time",)))

        def work(connection: Any, insert: Insert) -> tuple[StoreResult, Added]:
            result = insert(batch)
            new = Fragment(
                given.worker_uuid, given.fid_in_worker, given.session_id, given.model_version,
                int(result.seqs[0]), size,
            )  # fmt: skip
            return result, add(connection, self._core, new)

        try:
            written, added = self._core.writer.store_within(batch, work)
        except SentBeforeError:
            return Added()
        except NotInOrderError as error:
            raise _behind(given, error.last_fid) from None
        if written.inserted and added.pool is None:
            # Another process sent a later one as this worker, while this one was on its way: it was
            # taken for one that had been there, and is part of nothing.
            fragment_reading.delete(self._core, record.id)
            raise _behind(given, "a later one")
        if written.conflicts:
            raise _other_content(given)
        return added

    def _after_add(self, added: Added, given: FragmentMetadata) -> None:
        if added.n_missing:
            logger.warning(
                "worker %r left out %d fragments before %d: they are in no chunk together",
                given.worker_uuid,
                added.n_missing,
                given.fid_in_worker,
            )
        if added.is_reported and added.pool is not None:
            self._send(added.pool)

    def _send(self, pool: Pool) -> None:
        """Report the state; what goes wrong there is no matter of the call, which is done."""
        found = metrics(pool)
        logger.info("replay buffer %r: %s", self._core.info.name, found)
        if self._report is not None:
            try:
                self._report(found)
            except Exception:
                logger.exception("replay buffer %r: report=... failed", self._core.info.name)

    def stats(self) -> dict[str, float]:
        """Return the numbers of the buffer by MineStudio's names, as `report` gets them.

        `replay_buffer/avg_reuse` is the mean use of the fragments that left between the last two
        fetches, and `replay_buffer/avg_staleness` that of the chunks that the last one handed out;
        each is left out while there is none. The others are counts since the buffer was made:
        `fragments` added and `dropped`, `gaps` of workers and the numbers `missing` there,
        `chunks` made, `fetched`, and left: `used_up`, `evicted`, `stale`, `other_session`,
        `broken`.
        """
        return metrics(self._reader.pool())

    def load_fragment(
        self, fragment_id: str, fields: Sequence[str] | None = None
    ) -> SampleFragment:
        """Return a fragment; see `FragmentStore.get_fragment`.

        Args:
            fragment_id: Its id, as `fetch_fragments` returns it.
            fields: Fields to read; all by default.

        Raises:
            FragmentNotFoundError: The fragment has left the buffer.
        """
        return self.store.get_fragment(fragment_id, fields)

    def fetch_fragments(
        self, num_fragments: int, *, timeout: float | None = None, consumer: str = ""
    ) -> list[tuple[FragmentIndex, str]]:
        """Draw random chunks, each at most once, count a use of each, and prepare their fragments.

        The prepared fragments replace those of the fetch before. Chunks are in the order in which
        they were drawn, and the fragments of each in their own order. They can be loaded until the
        next fetch has completed, even if their chunks leave the buffer.

        Args:
            num_fragments: A multiple of `fragments_per_chunk`; 0 empties the prepared list.
            timeout: Largest number of seconds to wait for enough chunks. None waits without end,
                and logs now and then which chunks are missing.
            consumer: Name of a separate prepared list; uses are counted for all consumers together.

        Returns:
            Index and id of each fragment.

        Raises:
            FragmentAssertionError: The number is not a multiple of `fragments_per_chunk`, or needs
                more than `max_chunks`.
            FetchTimeoutError: There were too few chunks in time; the message says why the others
                left.
        """
        wait_s, key = argument_checks.timeout(timeout), argument_checks.consumer(consumer)
        while True:
            k = argument_checks.n_chunks(num_fragments, self._rules)
            try:
                fetched = self._fetched(k, wait_s, key)
                break
            except fetching.RulesChangedError as error:
                self._rules = error.rules
        self._n_fetched += 1
        if k:
            self._send(fetched.pool)
        return _indexed(fetched.fragments or [])

    def _fetched(self, k: int, wait_s: float | None, consumer: str) -> fetching.Fetched:
        """Fetch k chunks, after a wait where there are fewer."""
        token = str(uuid.uuid4())

        def work(connection: Any) -> fetching.Fetched:
            return fetching.fetch(
                connection, self._core, self._rules, k, self._choose, consumer, token
            )

        wait = chunk_wait.Wait(self._reader, k, wait_s)
        while True:
            fetched = self._core.write(work)
            delete_left(self._core, 2 * k + DELETED_BY_FETCH)
            if fetched.fragments is not None:
                return fetched
            wait.for_more(fetched.pool)

    def _choose(self, n: int, k: int) -> Sequence[int]:
        """Return k of n places, without replacement."""
        seed = None if self._seed is None else (self._seed, self._n_fetched)
        places: list[int] = np.random.default_rng(seed).choice(n, k, replace=False).tolist()
        return places

    def prepared_fragments(self, consumer: str = "") -> list[tuple[FragmentIndex, str]]:
        """Return the fragments of the last fetch: the same for all processes and all calls;
        `[]` before the first.

        Args:
            consumer: Whose list.
        """
        return _indexed(self._reader.prepared(argument_checks.consumer(consumer)))

    def release_prepared(self, consumer: str = "") -> int:
        """Give back the prepared fragments, as if they had not been fetched.

        Use it if a consumer failed before it used them. Their uses are subtracted. Chunks that left
        because they were used up may be fetched again, if they are fresh and there is room.

        Args:
            consumer: Whose list.

        Returns:
            How many of the chunks may be fetched now.
        """
        key = argument_checks.consumer(consumer)
        n = self._core.write(lambda connection: fetching.release(connection, self._core, key))
        delete_left(self._core)
        return n

    def update_model_version(self, session_id: str, model_version: int) -> None:
        """Store the version of the trainer's model, and its session.

        Fragments that are further behind than `max_staleness` leave. A new session removes all
        fragments of other sessions. Prepared fragments can still be loaded.

        Args:
            session_id: The training session.
            model_version: The version; it may go back.

        Raises:
            FragmentError: The session is not text, or the version is not an integer.
        """
        session = argument_checks.session(session_id)
        version = argument_checks.version(model_version)
        versions.set_version(self._core, session, version)

    def update_training_session(self) -> None:
        """Do nothing, as in MineStudio; `update_model_version` names the session."""

    def close(self) -> None:
        """Close this process's idle connections; a later call opens new ones."""
        self._core.close()

    def __enter__(self) -> "ReplayBufferInterface":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ReplayBufferInterface({self._core.shown_url!r}, name={self._core.info.name!r})"


def _indexed(fragments: Sequence[fetching.Prepared]) -> list[tuple[FragmentIndex, str]]:
    return [(FragmentIndex(worker, fid), id_) for worker, fid, id_ in fragments]


def _behind(given: FragmentMetadata, last: Any) -> FragmentAssertionError:
    return FragmentAssertionError(
        f"worker {given.worker_uuid!r}: fragment {given.fid_in_worker} came behind {last}; a "
        f"worker numbers its fragments upward, and a new worker has its own worker_uuid"
    )


def _other_content(given: FragmentMetadata) -> FragmentAssertionError:
    return FragmentAssertionError(
        f"worker {given.worker_uuid!r} has sent fragment {given.fid_in_worker} with other content; "
        f"a worker numbers its fragments upward"
    )


def _id_of(given: FragmentMetadata) -> str:
    """Return the id of a fragment: the same each time that it is sent."""
    key = f"{len(given.session_id)} {given.session_id} {given.fid_in_worker} {given.worker_uuid}"
    return str(uuid.uuid5(uuid.NAMESPACE_OID, key))
