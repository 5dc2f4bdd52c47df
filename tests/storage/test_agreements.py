"""Which roles may divide passes between ranks."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageReadOnlyError


def test_a_role_that_only_reads_is_refused_and_learners_may(url_with_roles, login):
    with ReplayBuffer(url_with_roles, fields={"x": "int64"}) as buffer:
        buffer.extend({"x": range(10)})

    def read(rank):
        loader = buffer.loader("step", 2, epochs=1, shard=(rank, 2))
        return [x for batch in loader for x in batch.x.tolist()]

    with (
        ReplayBuffer(login("sqlbuffer_analyst"), create=False) as buffer,
        pytest.raises(StorageReadOnlyError, match="sqlbuffer_learner also"),
    ):
        read(0)
    with ReplayBuffer(login("sqlbuffer_learner"), create=False) as buffer:
        assert sorted(read(0) + read(1)) == list(range(10))
