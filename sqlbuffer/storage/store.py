"""An open buffer, with its parts."""

from typing import TYPE_CHECKING

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from sqlbuffer.config import DEFAULT_CONFIG, DEFAULT_CONNECTION, BufferConfig, Connection
from sqlbuffer.encoding.packing import check_compression
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.processes import late_part
from sqlbuffer.storage.buffers import catalog
from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer, OwnWrites
from sqlbuffer.storage.buffers.window import clean_after_write, rows_of_steps
from sqlbuffer.storage.database.engine import (
    close_idle,
    engine_for,
    own_engine,
    resolve_url,
)
from sqlbuffer.storage.database.errors import retried, translated
from sqlbuffer.storage.database.transactions import is_joined
from sqlbuffer.storage.database.urls import Database, shown_url
from sqlbuffer.storage.migrations.migrate import ensure_schema

if TYPE_CHECKING:
    from sqlbuffer.storage.agreements import RankAgreements
    from sqlbuffer.storage.buffers.sessions import Sessions
    from sqlbuffer.storage.draws import BatchDraws
    from sqlbuffer.storage.flow import Pacer
    from sqlbuffer.storage.labels.writing import Labelling
    from sqlbuffer.storage.leases.leases import LeaseKeeping
    from sqlbuffer.storage.priorities.keeping import PriorityKeeping
    from sqlbuffer.storage.reading import RowQueries
    from sqlbuffer.storage.retention.deletion import Deletion
    from sqlbuffer.storage.retention.expiry import Expiry
    from sqlbuffer.storage.retention.quarantine import Quarantine
    from sqlbuffer.storage.retention.sweeps import Sweep
    from sqlbuffer.storage.sampling.candidate_source import CandidateSource
    from sqlbuffer.storage.use_counts import SamplingSessions, UseCounting
    from sqlbuffer.storage.writing.chunks import ChunkWriter
    from sqlbuffer.storage.writing.rows import RowWriter


class BufferStore(OpenBuffer):
    """An open buffer, and the parts that work on it; arguments as those of `OpenBuffer`.

    Parts are made at their first use: whoever opens a buffer does not wait for their modules.
    """

    def __init__(
        self,
        url: URL,
        info: BufferInfo,
        engine: Engine | None = None,
        *,
        made_engine: bool = False,
        options: Connection = DEFAULT_CONNECTION,
    ) -> None:
        super().__init__(url, info, engine, made_engine=made_engine, options=options)
        read_url = options.read_url
        self._standby = None if read_url is None else self._on_standby(read_url)

    @late_part
    def priorities(self) -> "PriorityKeeping":
        """Sets the priorities of rows."""
        from sqlbuffer.storage.priorities.keeping import PriorityKeeping

        return PriorityKeeping(self)

    @late_part
    def source(self) -> "CandidateSource":
        """Opens the rows to reads and to samplers."""
        from sqlbuffer.storage.sampling.candidate_source import CandidateSource

        has_priorities = self.info.config.priorities.enabled
        return CandidateSource(self, self.priorities.of if has_priorities else None)

    @late_part
    def rows(self) -> "RowQueries":
        """Counts and reads stored rows."""
        from sqlbuffer.storage.reading import RowQueries

        return RowQueries(self, self.source, self.own_writes)

    @late_part
    def pacer(self) -> "Pacer":
        """Waits for the rate limiter."""
        from sqlbuffer.storage.flow import Pacer

        return Pacer(self)

    @late_part
    def uses(self) -> "UseCounting":
        """Counts and logs drawn rows."""
        from sqlbuffer.storage.use_counts import UseCounting

        return UseCounting(self, self.source.restrictions)

    @late_part
    def expiry(self) -> "Expiry":
        """Removes rows that may never be sampled again."""
        from sqlbuffer.storage.retention.expiry import Expiry

        return Expiry(self.source)

    @late_part
    def sweep(self) -> "Sweep":
        """Lets steps leave by age and size."""
        from sqlbuffer.storage.retention.sweeps import Sweep

        return Sweep(self)

    @late_part
    def _sampling_sessions(self) -> "SamplingSessions":
        from sqlbuffer.storage.use_counts import SamplingSessions

        return SamplingSessions(self.uses, self.pacer)

    @late_part
    def draws(self) -> "BatchDraws":
        """Draws batches with samplers."""
        from sqlbuffer.storage.draws import BatchDraws

        return BatchDraws(
            self.source,
            self.rows,
            self.own_writes,
            self.priorities,
            self._sampling_sessions,
            self.expiry,
        )

    @late_part
    def writer(self) -> "RowWriter":
        """Stores rows."""
        from sqlbuffer.storage.writing.rows import RowWriter

        return RowWriter(self, self.source.whole_rows, self.pacer, self.sweep.wrote)

    @late_part
    def chunk_writer(self) -> "ChunkWriter":
        """Stores chunks."""
        from sqlbuffer.storage.writing.chunks import ChunkWriter

        return ChunkWriter(self, self.pacer, self.sweep.wrote)

    @late_part
    def sessions(self) -> "Sessions":
        """The training sessions, and the clock."""
        from sqlbuffer.storage.buffers.sessions import Sessions

        return Sessions(self)

    @late_part
    def leases(self) -> "LeaseKeeping":
        """Leases rows."""
        from sqlbuffer.storage.leases.leases import LeaseKeeping

        return LeaseKeeping(self.source, self._sampling_sessions, self.expiry.run_if_due)

    @late_part
    def labels(self) -> "Labelling":
        """Annotates rows."""
        from sqlbuffer.storage.labels.writing import Labelling
        from sqlbuffer.storage.rows.layouts import layout_of

        return Labelling(self, layout_of(self.info).at)

    @late_part
    def deletion(self) -> "Deletion":
        """Deletes rows and episodes."""
        from sqlbuffer.storage.retention.deletion import Deletion

        return Deletion(self)

    @late_part
    def quarantine(self) -> "Quarantine":
        """Excludes rows from sampling."""
        from sqlbuffer.storage.retention.quarantine import Quarantine

        return Quarantine(self)

    @late_part
    def agreements(self) -> "RankAgreements":
        """What the ranks of a training run agree on."""
        from sqlbuffer.storage.agreements import RankAgreements

        return RankAgreements(self)

    @property
    def reading(self) -> "BufferStore":
        """The same buffer where it is read: on the standby, if there is one, else this one."""
        # A transaction sees what it has written.
        return self if self._standby is None or is_joined() else self._standby

    @property
    def drawing(self) -> "BufferStore":
        """The same buffer where it is drawn from: a draw that is counted writes."""
        sampling, flow = self.info.config.sampling, self.info.config.flow
        is_limited = flow.rate_limiter is not None or self.pacer.is_limited
        is_counted = sampling.max_use is not None or sampling.track_samples or is_limited
        return self if is_counted else self.reading

    def _on_standby(self, read_url: str) -> "BufferStore":
        url = _standby_url(self.url, read_url)
        from sqlbuffer.storage.reading import StandbyReads

        options = self.options.model_copy(update={"read_url": None, "max_lag_s": None})
        standby = BufferStore(url, self.info, options=options)
        reads = StandbyReads(self, standby, self.own_writes, self.options.max_lag_s)
        standby.read_after(reads)
        return standby

    def read_after(self, own_writes: OwnWrites) -> None:
        """Let reads and draws bring the steps of this process up to date in another way."""
        self.own_writes = self.rows.own_writes = self.draws.own_writes = own_writes

    def clean(self, n_stored: int, n_updated: int = 0) -> None:
        """Clean after a transaction that has stored steps, or set priorities."""
        watermark, n_rows, n_bytes = self.watermark if n_stored else None, n_stored, 0
        if self.info.has_chunks:
            n_rows, n_bytes = rows_of_steps(n_stored), n_stored * self.layout.size_bytes
        clean_after_write(self.engine, n_rows + n_updated, n_bytes, watermark)
        if n_stored:
            self.sweep.wrote()
        self.priorities.clean()

    def close(self) -> None:
        """Publish sampled rows that are not counted yet, then close idle connections."""
        self.pacer.publish_rest()
        super().close()
        if self._standby is not None:
            self._standby.close()

    @classmethod
    def open(
        cls,
        url: Database,
        name: str,
        config: BufferConfig = DEFAULT_CONFIG,
        *,
        create: bool | None,
        options: Connection = DEFAULT_CONNECTION,
        layout: str | None = None,
    ) -> "BufferStore":
        """Open a buffer, and create missing objects if `create` allows it (see `ReplayBuffer`).

        Args:
            url: The database.
            name: The buffer.
            config: Configuration of a new buffer. For a stored one the given settings are compared.
            create: See `ReplayBuffer`.
            options: Options of the opener.
            layout: The layout of a new buffer; a stored one may have another.
        """
        check_compression(config.payloads.compression)
        resolved = resolve_url(url)
        if options.read_url is not None:
            _standby_url(resolved, options.read_url)  # or the buffer would be made
        engine = own_engine(url, resolved)

        def info() -> BufferInfo:
            with translated(resolved):
                used = engine if engine is not None else engine_for(resolved)
                ensure_schema(used, resolved, create)
                may_create = create is not False
                return catalog.open_buffer(
                    used, resolved, name, config, options.alpha, layout, may_create=may_create
                )

        buffer_info = retried(
            info,
            options.retry_s,
            lambda: close_idle(resolved),
        )
        made_engine = not isinstance(url, Engine)
        store = cls(resolved, buffer_info, engine, made_engine=made_engine, options=options)
        if options.read_url is not None:
            from sqlbuffer.storage.reading import StandbyReads

            if isinstance(reads := store.reading.own_writes, StandbyReads):
                reads.check()
        return store


def _standby_url(primary: URL, read_url: str) -> URL:
    """Return the resolved URL of a standby.

    Raises:
        BufferConfigError: One of the two is not of PostgreSQL.
        URLError: It is not a URL.
    """
    url = resolve_url(read_url)
    if {primary.get_backend_name(), url.get_backend_name()} != {"postgresql"}:
        raise BufferConfigError(
            f"read_url={shown_url(url)!r} goes with a PostgreSQL database and is a standby of it; "
            f"SQLite has none: leave out read_url"
        )
    return url
