"""The examples in docstrings run, and every public class has one."""

import doctest
import importlib
import pkgutil

import pytest

import sqlbuffer
from sqlbuffer import aio, orm
from sqlbuffer.compat.memmap.datasets import loading

MODULES = [
    module.name
    for module in pkgutil.walk_packages(sqlbuffer.__path__, "sqlbuffer.")
    # Stand-ins for what compat does not offer name the alternative instead of importing.
    if not module.name.endswith((".redis", ".odps", ".event_replay_buffer", ".processor"))
    and not module.name.endswith((".replay_buffer_h5py", ".memmap.video", ".memmap.frontend"))
    and not module.name.endswith((".minestudio.actor", ".ding.buffer", ".ding.data"))
    # Those that need another library run in tests/peers.
    and not module.name.startswith(
        (
            "sqlbuffer.integrations.",
            "sqlbuffer.interchange.hugging_face.hf_datasets",
            "sqlbuffer.interchange.minari.minari_",
        )
    )
]
MEMMAP = "sqlbuffer.compat.memmap"
NEED_TORCH = {"sqlbuffer.torch", f"{MEMMAP}.concat_replay_buffer"} | {
    f"{MEMMAP}.datasets.{name}"
    for name in (*loading.DATASETS.values(), "batches", "concat_dataset", "slot_dataset")
}
PUBLIC_CLASSES = [getattr(sqlbuffer, name) for name in sqlbuffer.__all__] + [
    aio.AsyncReplayBuffer,
    *(orm.Buffer, orm.Episode, orm.Experience, orm.Task),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=options).failed == 0


@pytest.mark.parametrize("cls", PUBLIC_CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_every_public_class_has_an_example(cls: type) -> None:
    assert ">>> " in (cls.__doc__ or "")
