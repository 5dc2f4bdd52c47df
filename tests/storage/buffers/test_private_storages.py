"""The connections of a private storage are closed before its file is removed."""

import gc
import pickle
from pathlib import Path

import pytest

from sqlbuffer.compat.aworld import InMemoryStorage
from tests.compat.aworld.aworld_rows import row


@pytest.mark.thorough
@pytest.mark.slow
def test_private_file_goes_with_its_storage_but_not_with_a_copy():
    storage = InMemoryStorage()
    file = Path(storage.buffer._store.url.database)
    copy = pickle.loads(pickle.dumps(storage))
    del copy
    gc.collect()
    storage.add(row())
    assert file.exists()
    pool = storage.buffer._store.engine.pool
    assert pool.checkedin()
    del storage
    gc.collect()
    assert not file.parent.exists()
    assert not pool.checkedin()
