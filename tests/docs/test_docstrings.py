"""The examples in docstrings run; test_api_pages.py says that public names have one."""

import doctest
import importlib
import pkgutil

import pytest

import sqlbuffer

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
            "sqlbuffer.interchange.arrays.sb3_and_cpprb",
            "sqlbuffer.interchange.hugging_face",
            "sqlbuffer.interchange.minari",
        )
    )
]
MEMMAP = "sqlbuffer.compat.memmap"
NEED_TORCH = {
    "sqlbuffer.torch", "sqlbuffer.steps", f"{MEMMAP}.concat_replay_buffer",
    f"{MEMMAP}.datasets",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=options).failed == 0
