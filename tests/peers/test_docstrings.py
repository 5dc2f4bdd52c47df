"""The examples in docstrings of modules that need other libraries run."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

from sqlbuffer.interchange import hugging_face, minari

MODULES = [
    module.name
    for package in (hugging_face, minari)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(name), optionflags=options).failed == 0
