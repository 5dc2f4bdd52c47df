"""`ReplayBufferInterface`: the buffer of MineStudio's online training."""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sqlbuffer.arguments import checked_clock
from sqlbuffer.buffer import ReplayBuffer, Transaction
from sqlbuffer.checks import integer_of, real_of
from sqlbuffer.compat.database_files import full_path
from sqlbuffer.compat.minestudio import chunks
from sqlbuffer.compat.minestudio.chunks import Added, Fragment, Pool, add, fragment_id
from sqlbuffer.compat.minestudio.config import (
    NAME,
    Config,
    Rules,
    checked_key,
    location,
    not_for_fragments,
    open_buffer,
)
from sqlbuffer.compat.minestudio.datatypes import FragmentIndex, FragmentMetadata, SampleFragment
from sqlbuffer.compat.minestudio.errors import (
    FetchTimeoutError,
    FragmentAssertionError,
    FragmentError,
    FragmentTypeError,
)
from sqlbuffer.compat.minestudio.fragment_store import FragmentStore, encoded, own_error
from sqlbuffer.errors import (
    BufferNotFoundError,
    FieldError,
    SchemaMissingError,
    StorageUnreachableError,
)

logger = logging.getLogger("sqlbuffer")

# Number of chunks that an add deletes: usually one leaves with it, and sometimes many together. A
# fetch deletes twice the number that it prepares, plus this number.
DELETED_BY_ADD, DELETED_BY_FETCH = 8, 64
# From one look to the next, where there are too few chunks: a read by key.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.25
# When it is logged that a fetch waits; then after twice as long each time, up to the last.
FIRST_LOG_S, LAST_LOG_S = 10.0, 300.0
METRIC = "replay_buffer/"
_COUNTED = (
    "chunks", "fragments", "fetches", "fetched", "used_up", "evicted", "stale", "other_session",
    "broken", "dropped", "gaps", "missing",
)  # fmt: skip

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
        self._seed, self._n_fetched = _checked_seed(seed), 0
        if report is not None and not callable(report):
            raise FragmentTypeError(f"report is called with a dict of numbers, got {report!r}")
        self._report = report
        parsed = None if config is None else Config.parse(config)
        if parsed is None:
            self._buffer, self._rules = _open_existing(url, name)
        else:
            url = _target(parsed, url)
            self._buffer, self._rules = _open_or_make(parsed, url, name)
        self.store = FragmentStore.of(self._buffer)
        self.database_config = _database_config(self._buffer, parsed, url)

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
        metadata = _checked_metadata(metadata, fragment)
        id_ = fragment_id(metadata.session_id, metadata.fid_in_worker, metadata.worker_uuid)
        row, n_bytes = encoded(fragment, metadata, id_)
        new = Fragment(
            metadata.worker_uuid,
            metadata.fid_in_worker,
            metadata.session_id,
            metadata.model_version,
            n_bytes,
        )
        added = self._stored(row, new)
        if added.pool is None:
            return
        chunks.delete_left(self._buffer, added.pool, DELETED_BY_ADD)
        if added.n_missing:
            logger.warning(
                "worker %r left out %d fragments before %d: they are in no chunk together",
                new.worker,
                added.n_missing,
                new.fid,
            )
        if added.is_reported:
            self._send(added.pool)

    def _stored(self, row: dict[str, Any], new: Fragment) -> Added:
        def work(tx: Transaction) -> Added:
            stored = tx.add(**row)
            if stored is None or stored.conflicts:
                raise FragmentAssertionError(
                    f"worker {new.worker!r} has sent fragment {new.fid} with other content; a "
                    f"worker numbers its fragments upward"
                )
            return add(tx, new._replace(seq=int(stored.seqs[0]))) if stored.inserted else Added()

        try:
            return self._buffer.transaction(work)
        except chunks.SentBeforeError:
            return Added()
        except chunks.NotInOrderError as error:
            raise FragmentAssertionError(
                f"worker {new.worker!r}: fragment {new.fid} came behind {error.last}; a worker "
                f"numbers its fragments upward, and a new worker has its own worker_uuid"
            ) from None
        except FieldError as error:
            raise own_error(error) from None

    def _send(self, pool: Pool) -> None:
        """Report the state; an error there is only logged, since the call has succeeded."""
        metrics = _metrics(pool)
        logger.info("replay buffer %r: %s", self._buffer.name, metrics)
        if self._report is not None:
            try:
                self._report(metrics)
            except Exception:
                logger.exception("replay buffer %r: report=... failed", self._buffer.name)

    def stats(self) -> dict[str, float]:
        """Return the numbers of the buffer by MineStudio's names, as `report` gets them.

        `replay_buffer/avg_reuse` is the mean use of the fragments that left between the last two
        fetches, and `replay_buffer/avg_staleness` that of the chunks that the last one handed out;
        each is left out while there is none. The others are counts since the buffer was made:
        `fragments` added and `dropped`, `gaps` of workers and the numbers `missing` there,
        `chunks` made, `fetched`, and left: `used_up`, `evicted`, `stale`, `other_session`,
        `broken`.
        """
        return _metrics(chunks.read_pool(self._buffer))

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
            FragmentError: The timeout is negative, or the consumer cannot be stored as text.
            FragmentTypeError: The timeout is not a number, or the consumer is not text.
        """
        wait_s, key = _checked_timeout(timeout), checked_key(consumer, "consumer")
        while True:
            k = _checked_n_chunks(num_fragments, self._rules)
            try:
                fetched = self._fetched(k, wait_s, key)
                break
            except chunks.RulesChangedError as error:
                self._rules = error.rules
        self._n_fetched += 1
        if k:
            self._send(fetched.pool)
        return _indexed(fetched.fragments or [])

    def _fetched(self, k: int, wait_s: float | None, consumer: str) -> chunks.Fetched:
        """Fetch k chunks, after a wait where there are fewer."""

        def work(tx: Transaction) -> chunks.Fetched:
            return chunks.fetch(tx, self._rules, k, self._choose, consumer)

        wait = _Wait(self._buffer, k, wait_s)
        while True:
            fetched = self._buffer.transaction(work)
            chunks.delete_left(self._buffer, fetched.pool, 2 * k + DELETED_BY_FETCH)
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

        Raises:
            FragmentError: The consumer cannot be stored as text.
            FragmentTypeError: The consumer is not text.
        """
        return _indexed(chunks.prepared(self._buffer, checked_key(consumer, "consumer")))

    def release_prepared(self, consumer: str = "") -> int:
        """Give back the prepared fragments, as if they had not been fetched.

        Use it if a consumer failed before it used them. Their uses are subtracted. Chunks that left
        because they were used up may be fetched again, if they are fresh and there is room.

        Args:
            consumer: Whose list.

        Returns:
            How many of the chunks may be fetched now.

        Raises:
            FragmentError: The consumer cannot be stored as text.
            FragmentTypeError: The consumer is not text.
        """
        key = checked_key(consumer, "consumer")
        n, pool = self._buffer.transaction(lambda tx: chunks.release(tx, key))
        chunks.delete_left(self._buffer, pool)
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
        session = checked_key(session_id, "session_id")
        version = _checked_version(model_version)
        pool = self._buffer.transaction(lambda tx: chunks.set_version(tx, session, version))
        chunks.delete_left(self._buffer, pool)

    def update_training_session(self) -> None:
        """Do nothing, as in MineStudio; `update_model_version` names the session."""

    def close(self) -> None:
        """Close this process's idle connections; a later call opens new ones."""
        self._buffer.close()

    def __enter__(self) -> "ReplayBufferInterface":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ReplayBufferInterface({self._buffer.url!r}, name={self._buffer.name!r})"


class _Wait:
    """The wait of one fetch until there are enough chunks; it logs the missing ones.

    Args:
        buffer: The buffer.
        k: Number of chunks.
        timeout_s: Seconds to wait; None: without end.
    """

    def __init__(self, buffer: ReplayBuffer, k: int, timeout_s: float | None) -> None:
        self._buffer, self._k, self._timeout_s = buffer, k, timeout_s
        self._began = time.monotonic()
        self._pause_s = FIRST_PAUSE_S
        self._log_s = FIRST_LOG_S
        self._first: Pool | None = None

    def for_more(self, pool: Pool) -> None:
        """Wait until there may be enough chunks.

        Args:
            pool: The state when there were too few.

        Raises:
            FetchTimeoutError: The time is up.
        """
        self._first = self._first or pool
        while pool.n_chunks < self._k:
            waited_s = time.monotonic() - self._began
            left_s = float("inf") if self._timeout_s is None else self._timeout_s - waited_s
            if left_s <= 0:
                raise FetchTimeoutError(self._missing(pool, waited_s))
            if waited_s >= self._log_s:
                logger.warning("%s", self._missing(pool, waited_s))
                self._log_s += min(self._log_s, LAST_LOG_S)
            time.sleep(min(self._pause_s, left_s))
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            pool = chunks.read_pool(self._buffer)

    def _missing(self, pool: Pool, waited_s: float) -> str:
        """Return a message about the missing chunks."""
        first = self._first or pool
        now, then = pool.counts, first.counts
        left = ", ".join(
            f"{n} {what}"
            for what, n in (
                ("used up", now.used_up - then.used_up),
                ("evicted", now.evicted - then.evicted),
                ("expired", now.stale - then.stale),
                ("of another session", now.other_session - then.other_session),
            )
            if n
        )
        n, came = pool.rules.fragments_per_chunk, now.fragments - then.fragments
        return (
            f"fetch_fragments: have {pool.n_chunks} of {self._k} chunks after {waited_s:.1f} s; "
            f"since then {came} fragments came in, {now.dropped - then.dropped} were dropped, and "
            f"these chunks left: {left or 'none'}. A chunk is {n} consecutive fragments of a "
            f"worker, of session {pool.session!r} and version {pool.oldest_allowed} or later: see "
            f"that workers run and send such, wait longer (timeout), or ask for fewer"
        )


def _metrics(pool: Pool) -> dict[str, float]:
    """Return the metrics of a buffer; unknown ones are left out, so that none is NaN."""
    counts = pool.counts
    known = {
        "fragments_per_second": counts.per_second,
        "replay_buffer_size (chunk)": pool.n_chunks,
        "model_version": pool.version,
        "avg_reuse": counts.reuse,
        "avg_staleness": counts.staleness,
        "size_bytes": pool.n_bytes,
        **{name: getattr(counts, name) for name in _COUNTED},
    }
    return {METRIC + name: value for name, value in known.items() if value is not None}


def _indexed(fragments: Sequence[chunks.Prepared]) -> list[tuple[FragmentIndex, str]]:
    return [(FragmentIndex(worker, fid), id_) for worker, fid, id_ in fragments]


def _target(config: Config, url: Any) -> Any:
    """Return the URL of the database of a config."""
    where = config.database_config
    if url is not None and where.url is not None:
        raise FragmentError("give url=... or database_config.url, not both")
    return location(where.path, where.url) if url is None else url


def _open_or_make(config: Config, url: Any, name: str) -> tuple[ReplayBuffer, Rules]:
    """Return the buffer of a config, made if missing, and its rules.

    Raises:
        FragmentError: It is stored with another config.
    """
    buffer, rules = open_buffer(url, name), config.rules
    pool = chunks.find_pool(buffer)
    if pool is None:
        if buffer.size({"field": "extra.episode_lengths", "op": "is_null"}):
            raise not_for_fragments(name, "it has rows that are no fragments")
        stored = chunks.make(buffer, rules)
    else:
        stored = pool.rules
    if config.clear:
        chunks.clear(buffer, rules)
        stored = rules
    if lines := rules.differences(stored):
        raise FragmentError(
            f"Replay buffer already initialized at {buffer.url} with another config:\n  "
            + "\n  ".join(lines)
            + "\nGive the same config, omit config to use the stored one, or set clear: true in "
            "it to delete the contents of the buffer."
        )
    if rules != stored:  # in what may differ
        chunks.change_rules(buffer, rules)
    return buffer, rules


def _open_existing(url: Any, name: str) -> tuple[ReplayBuffer, Rules]:
    """Return an existing buffer and its rules.

    Raises:
        FragmentError: There is none.
    """
    try:
        buffer = open_buffer(url, name, create=False)
    except (BufferNotFoundError, SchemaMissingError, StorageUnreachableError) as error:
        if not isinstance(error, StorageUnreachableError) or "cannot open" in str(error):
            # Give advice about the config here, except for tables that an administrator makes.
            said, _, advice = str(error).partition(";")
            if isinstance(error, SchemaMissingError):
                said += f";{advice}"
            raise FragmentError(
                f"Replay buffer not initialized: {said}. Make it with config=..., or say where "
                f"it is with url=... or SQLBUFFER_URL"
            ) from None
        raise
    pool = chunks.find_pool(buffer)
    if pool is None:
        raise FragmentError(
            f"Replay buffer not initialized: buffer {name!r} at {buffer.url} has no chunks; "
            f"make it with config=..., or choose another name=..."
        )
    return buffer, pool.rules


def _database_config(buffer: ReplayBuffer, config: Config | None, url: Any) -> dict[str, Any]:
    """Return what `FragmentStore` takes to open a buffer: a folder if it was given as one."""
    name = {} if buffer.name == NAME else {"name": buffer.name}
    where = None if config is None else config.database_config
    if where is None or where.path is None:
        return {"url": _full_url(buffer, url), **name}
    shards = {} if where.num_shards is None else {"num_shards": where.num_shards}
    return {"path": str(full_path(where.path)), **shards, **name}


def _full_url(buffer: ReplayBuffer, url: Any) -> str:
    """Return the URL of a buffer with its password; a file is the same for every process."""
    if buffer.url.startswith("sqlite:"):
        return buffer.url
    full = os.environ["SQLBUFFER_URL"] if url is None else getattr(url, "url", url)
    render = getattr(full, "render_as_string", None)
    return str(full) if render is None else str(render(hide_password=False))


def _checked_number(value: Any, name: str) -> int:
    """Return an integer of 64 bits."""
    try:
        return checked_clock(value, name)
    except TypeError as error:
        raise FragmentTypeError(str(error)) from None
    except ValueError as error:
        raise FragmentError(str(error)) from None


def _checked_version(value: Any) -> int:
    """Return the version of a model: the difference of two has 64 bits."""
    version = _checked_number(value, "model_version")
    if abs(version) >= 2**62:
        raise FragmentError(f"model_version is an integer of 62 bits, got {version}")
    return version


def _checked_metadata(metadata: Any, fragment: Any) -> FragmentMetadata:
    """Return the metadata of a fragment: those of this package or of MineStudio."""
    names = ("model_version", "session_id", "worker_uuid", "fid_in_worker")
    missing = [name for name in names if not hasattr(metadata, name)]
    if missing:
        raise FragmentTypeError(
            f"expected FragmentMetadata, got {type(metadata).__name__} without {', '.join(missing)}"
        )
    checked = FragmentMetadata(
        _checked_version(metadata.model_version),
        checked_key(metadata.session_id, "session_id"),
        checked_key(metadata.worker_uuid, "worker_uuid"),
        _checked_number(metadata.fid_in_worker, "fid_in_worker"),
    )
    if not checked.worker_uuid:
        raise FragmentError("worker_uuid is a text, got ''")
    if checked.fid_in_worker < 0:
        raise FragmentError(
            f"fid_in_worker is counted from 0 by each worker, got {checked.fid_in_worker}"
        )
    if not hasattr(fragment, "worker_uuid") or not hasattr(fragment, "fid_in_worker"):
        raise FragmentTypeError(f"expected a SampleFragment, got {type(fragment).__name__}")
    identity = (fragment.worker_uuid, fragment.fid_in_worker)
    if identity != (checked.worker_uuid, checked.fid_in_worker):
        raise FragmentError(
            f"the metadata are of fragment {checked.fid_in_worker} of worker "
            f"{checked.worker_uuid!r}, and the fragment is {identity[1]!r} of {identity[0]!r}"
        )
    return checked


def _checked_n_chunks(num_fragments: Any, rules: Rules) -> int:
    """Return the number of chunks of a number of fragments."""
    n = _checked_number(num_fragments, "num_fragments")
    per_chunk = rules.fragments_per_chunk
    if n < 0:
        raise FragmentAssertionError(f"num_fragments is 0 or more, got {n}")
    if n % per_chunk:
        raise FragmentAssertionError(
            f"num_fragments is a multiple of fragments_per_chunk ({per_chunk}), got {n}"
        )
    if n // per_chunk > rules.max_chunks:
        raise FragmentAssertionError(
            f"{n} fragments are {n // per_chunk} chunks, and the buffer has {rules.max_chunks} at "
            f"most (max_chunks): there would never be enough"
        )
    return n // per_chunk


def _checked_timeout(value: Any) -> float | None:
    """Return how long to wait; None: without end."""
    if value is None:
        return None
    seconds = real_of(value)
    if seconds is None:
        raise FragmentTypeError(f"timeout is a number of seconds or None, got {value!r}")
    if not seconds >= 0:
        raise FragmentError(f"timeout is a number of seconds from 0 on, got {value!r}")
    return None if math.isinf(seconds) else seconds


def _checked_seed(value: Any) -> int | None:
    if value is None:
        return None
    integer = integer_of(value)
    if integer is None:
        raise FragmentTypeError(f"seed is an integer, got {value!r}")
    if integer < 0:
        raise FragmentError(f"seed is an integer from 0 on, got {value!r}")
    return integer
