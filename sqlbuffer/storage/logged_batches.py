"""Batches of the sample log, with what their rows were when they were drawn."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from sqlbuffer.codec.plain_values import dumps
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import snapshot
from sqlbuffer.storage.episodes import EpisodeFacts, EpisodeKey, facts_of
from sqlbuffer.storage.labels.reading import label_histories
from sqlbuffer.storage.labels.values import in_force, labelled_extra
from sqlbuffer.storage.rows.layouts import PLACES, Row, episodes_of, with_values
from sqlbuffer.storage.sample_log import samples
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.storage.schema.expressions import listed

_REALS = ("reward_t", "adv_t", "v_t")


class StoredBatch(NamedTuple):
    """An entry of the sample log, and its rows as they are stored.

    Attributes:
        entry: The row of `samples`.
        seqs: The rows of the batch, in its order.
        rows: The rows that the buffer holds, each once, with the labels of that moment.
        episodes: What is known of their episodes now.
    """

    entry: Any
    seqs: Sequence[int]
    rows: dict[int, Row]
    episodes: dict[EpisodeKey, EpisodeFacts]


def read_logged(source: CandidateSource, number: int) -> StoredBatch | None:
    """Return a batch of the sample log; None if it is not logged."""
    buffer = source.buffer

    def look(connection: Connection) -> StoredBatch | None:
        sample = samples.c
        is_it = (sample.buffer_id == buffer.info.id) & (sample.id == number)
        entry = connection.execute(select(samples).where(is_it)).one_or_none()
        if entry is None:
            return None
        seqs, window = listed(entry.seqs), source.sampled_window(connection)
        held = sorted({seq for seq in seqs if seq > window.low})
        reading = source.whole_rows.reading
        rows = reading.by_number(
            connection, buffer.info.id, held, has_labels=False,
            has_deleted=bool(window.has_deleted),
        )  # fmt: skip
        whole = source.whole_rows.held(connection, rows)
        if window.has_labels:
            whole = _with_labels(connection, buffer.info.id, whole, entry.sampled_at)
        known = facts_of(connection, buffer.info.id, episodes_of(whole))
        # The labels of that moment count, and not the sum of now.
        known = {key: facts._replace(total=None) for key, facts in known.items()}
        return StoredBatch(entry, seqs, {row[0]: row for row in whole}, known)

    def read() -> StoredBatch | None:
        with translated(buffer.url), snapshot(buffer.engine) as connection:
            return look(connection)

    return buffer.with_retries(read)


def _with_labels(
    connection: Connection, buffer_id: int, rows: Sequence[Row], until: Any
) -> list[Row]:
    """Return rows with the labels that they had at a time."""
    histories = label_histories(connection, buffer_id, [row[0] for row in rows], until)
    labelled = []
    for row in rows:
        label = in_force(histories[row[0]])
        values = {name: getattr(label, name) for name in _REALS}
        values["extra"] = labelled_extra(row[PLACES["extra"]], label)
        values["fields"] = None if label.fields is None else dumps(label.fields)
        given = {PLACES[name]: value for name, value in values.items() if value is not None}
        labelled.append(with_values(row, given))
    return labelled
