"""Who may only read leases nothing, and copies of a buffer know nothing of its leases."""

import pickle

import pytest
from sqlalchemy import make_url

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageReadOnlyError
from tests.storage.leases.queue import none_left, steps_leased, store, uses_of
from tests.support.sql import is_sqlite, run


def read_only(url):
    """Return a URL of the same database that cannot write."""
    if is_sqlite(url):
        return f"sqlite:///file:{make_url(url).database}?immutable=1&uri=true"
    options = {"options": "-c default_transaction_read_only=on"}
    return make_url(url).update_query_dict(options).render_as_string(False)


@pytest.mark.parametrize("options", [{}, {"group_by": "task_id"}], ids=["rows", "groups"])
def test_who_may_only_read_leases_nothing_and_is_told_so(buffer_url, options):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        store(buffer, range(4))
    with ReplayBuffer(read_only(buffer_url), create=False) as reader:
        lease = reader.lease(1, timeout_s=0, **options)
        with pytest.raises(StorageReadOnlyError, match=r"read(-|ing )?only"):
            lease.__enter__()
        assert len(reader) == 4
    assert run(buffer_url, "SELECT * FROM leases") == []
    assert set(uses_of(buffer_url).values()) == {0}


def test_a_pickled_copy_of_a_buffer_leases_what_its_original_has_not(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=1) as buffer:
        store(buffer, range(5))
        with buffer.lease(3, order="fifo") as batch:
            copy = pickle.loads(pickle.dumps(buffer))
            none_left(copy, 3)
            assert steps_leased(copy, 2, order="fifo") == [3, 4]
            with copy.lease(1, order="fifo"):
                copy.close()  # the connections are everybody's
            batch.renew()
        assert [row.exp_meta.step for row in buffer] == [4]
