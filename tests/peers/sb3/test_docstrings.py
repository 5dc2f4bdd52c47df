import doctest
import importlib
import pkgutil

import pytest

from sqlbuffer.integrations import sb3

MODULES = [module.name for module in pkgutil.iter_modules(sb3.__path__, f"{sb3.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(name), optionflags=options).failed == 0


def test_every_public_class_has_an_example() -> None:
    assert all(">>> " in (getattr(sb3, name).__doc__ or "") for name in sb3.__all__)
