"""The table of the sample log."""

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text

from sqlbuffer.storage.schema.metadata import REALS, SEQS, SERIAL, TIME, metadata
from sqlbuffer.storage.schema.server_clock import utc_now

# A row for each sampled batch, if the buffer logs them.
samples = Table(
    "samples",
    metadata,
    Column("id", SERIAL, primary_key=True, comment="number of the batch"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column("clock", BigInteger, comment="the learner's iteration or model version"),
    Column("sampler", Text, nullable=False, comment="name of the sampler"),
    Column("seed", Text, comment="its seed"),
    Column("n_rows", Integer, nullable=False, comment="rows of the batch"),
    Column("seqs", SEQS, nullable=False, comment="the rows, in the order of the batch"),
    Column("probabilities", REALS, comment="the probability of each, if it is known"),
    Column("sampled_at", TIME, nullable=False, server_default=utc_now(), comment="when"),
    # Numbers are unique, also after entries were deleted.
    sqlite_autoincrement=True,
)
Index(None, samples.c.buffer_id, samples.c.clock)
Index(None, samples.c.buffer_id, samples.c.sampled_at)
