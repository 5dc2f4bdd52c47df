"""A plugin for pytest that runs the tests of memmap-replay-buffer on `sqlbuffer.compat.memmap`.

The names of its modules import ours. `ReplayBufferH5PY` is `ReplayBuffer`, which is what the error
for importing it advises.
"""

import importlib
import sys
import types

import pytest

from sqlbuffer.compat import memmap

UPSTREAM = "memmap_replay_buffer"
_NO_H5 = "there is no HDF5 file: ReplayBuffer takes the place of ReplayBufferH5PY"
# The tests that fail here, each with the reason. One that passes is an error as well.
EXCEPTIONS = {
    "test_replay_buffer_h5py::test_parity_and_images": _NO_H5,
    "test_replay_buffer_h5py::test_buffered_storer_parity": "there is no get_buffered_storer: "
    "store_episode stores a whole episode in one transaction",
    "test_uint8_storage::test_uint8_storage": "there is no image.data.npy: steps are in a database",
}


def pytest_configure():
    h5py = types.ModuleType(f"{UPSTREAM}.replay_buffer_h5py")
    h5py.ReplayBufferH5PY = memmap.ReplayBuffer
    sys.modules[UPSTREAM] = memmap
    sys.modules[h5py.__name__] = h5py
    for name in ("concat_replay_buffer", "episode_collector", "replay_buffer"):
        sys.modules[f"{UPSTREAM}.{name}"] = importlib.import_module(f"{memmap.__name__}.{name}")


def pytest_collection_modifyitems(items):
    found = {f"{item.path.stem}::{item.name}": item for item in items}
    if missing := set(EXCEPTIONS) - set(found):
        raise pytest.UsageError(f"upstream has no such tests: {', '.join(sorted(missing))}")
    for name, reason in EXCEPTIONS.items():
        found[name].add_marker(pytest.mark.xfail(reason=reason, strict=True))
