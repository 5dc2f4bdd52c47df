"""Store rows: all of a batch or none, over lost connections."""

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection

from sqlbuffer.encoding.episode_records import EpisodeEnd
from sqlbuffer.encoding.records import Record, same_content
from sqlbuffer.storage.buffers.locks import lock_as_writer
from sqlbuffer.storage.buffers.open_buffer import (
    retry_on_disconnect,
)
from sqlbuffer.storage.buffers.settling import clean_after_write
from sqlbuffer.storage.episodes import lifecycle
from sqlbuffer.storage.episodes.keys import EpisodeKey
from sqlbuffer.storage.flow.pacing import Pacer
from sqlbuffer.storage.rows.payload_parts import prepared
from sqlbuffer.storage.sampling.sampled_buffer import SampledBuffer
from sqlbuffer.storage.writing.insertion import Insertion, Outcome, Written

Then = Callable[[Connection, Mapping[str, int]], None]


class RowStoring(SampledBuffer):
    """Stores the rows of a buffer.

    Attributes:
        pacer: The buffer's rate limiter.
    """

    pacer: Pacer

    def insert(
        self,
        records: Sequence[Record],
        *,
        ignore: frozenset[str] = frozenset(),
        endings: Sequence[EpisodeEnd] = (),
        metas: Mapping[EpisodeKey, str] | None = None,
        whole: EpisodeKey | None = None,
        admitted: bool = False,
        first: Callable[[Connection], None] | None = None,
        then: Then | None = None,
    ) -> Written:
        """Store the records whose ids the buffer does not hold, all or none; over lost connections.

        Args:
            records: The batch; may be empty.
            ignore: Fields that do not make a conflict when they differ from the stored row.
            endings: How episodes end with it.
            metas: JSON of what the user says of episodes that may begin with it.
            whole: The episode that it is, where it is stored whole or not at all.
            admitted: The rate limiter has let it in.
            first: Done in the same transaction, before the rest; anew with it.
            then: Done in the same transaction, behind the rest, with the numbers of all ids.

        Raises:
            EpisodeExistsError: `whole` is open, or was aborted.
            FlowControlError: The rate limiter did not let it in in time.
        """
        records = prepared(records, self.layout)
        of_ids: dict[str, Record] = {}
        for record in records:
            of_ids.setdefault(record.id, record)
        if not admitted:
            self.pacer.before_insert(len(of_ids))

        def end_episodes(connection: Connection, seqs: Mapping[str, int]) -> None:
            if self.info.evict_by == "episode":
                # First, as whoever evicts or annotates: an episode that ends may be one too many.
                lock_as_writer(connection, self.info.id)
            lifecycle.end(connection, self.info.id, endings, seqs)
            if then is not None:
                then(connection, seqs)

        insertion = Insertion(
            self.once(),
            self.info.id,
            list(of_ids.values()),
            end_episodes if endings or then is not None else None,
            metas,
            whole,
            self.whole_rows,
            first,
        )
        outcome = self._insert(insertion)
        n_bytes = sum(r.payload_bytes for r in records if r.payload_bytes)
        clean_after_write(self.engine, len(outcome.numbers), n_bytes, self.watermark)
        written = Written(list(outcome.numbers), [], [], outcome.seqs)
        fresh = set(outcome.numbers)
        for record in records:
            if record.id in fresh:
                fresh.discard(record.id)
                continue
            held = outcome.stored.get(record.id)
            other = of_ids[record.id] if held is None else held[1:]
            same = not (outcome.refused and held is None) and same_content(
                record, other, ignore=ignore, layout=self.layout
            )
            (written.duplicates if same else written.conflicts).append(record.id)
        return written

    def insert_made(
        self,
        records: Sequence[Record],
        make: Callable[[Connection, Sequence[Record]], Sequence[Record]],
        then: Then | None = None,
    ) -> None:
        """Store records that are made whole in the transaction that inserts them, all or none; over
        lost connections.

        Args:
            records: What is known of them before.
            make: Called first, with these as they are stored; returns them whole, with ids that
                nobody else gives. None: nothing is stored.
            then: Done behind the rest, with the numbers of all ids.
        """
        known = prepared(records, self.layout)

        def first(connection: Connection) -> None:
            insertion.replace(make(connection, known))

        insertion = Insertion(
            self.once(), self.info.id, known, then, payloads=self.whole_rows,
            first=first, guarded=False,
        )  # fmt: skip
        outcome = self._insert(insertion)
        n_bytes = sum(record.payload_bytes for record in known if record.payload_bytes)
        clean_after_write(self.engine, len(outcome.numbers), n_bytes, self.watermark)

    @retry_on_disconnect
    def _insert(self, insertion: Insertion) -> Outcome:
        return insertion.run(self.engine, self.options.durability)
