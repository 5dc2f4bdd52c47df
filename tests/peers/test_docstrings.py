"""The docstrings of modules that need other libraries keep the rules of tests/docs."""

import doctest
import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sqlbuffer.interchange import hugging_face, minari
from tests.docs import test_api_pages, test_method_docs

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


@pytest.mark.parametrize(
    "check",
    [
        test_api_pages.test_a_public_class_or_function_has_an_example,
        test_method_docs.test_an_example_shows_each_method,
        test_method_docs.test_a_method_names_the_errors_of_its_code_and_of_its_arguments,
        test_method_docs.test_errors_that_a_method_names_exist,
    ],
)
def test_the_buffer_for_stable_baselines3_is_documented(check: Callable[[str], None]) -> None:
    check("sqlbuffer.integrations.sb3.SQLReplayBuffer")
