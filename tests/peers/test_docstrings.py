"""The docstrings of modules that need other libraries keep the rules of tests/docs."""

import doctest
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from sqlbuffer.interchange import hugging_face, minari
from sqlbuffer.interchange.arrays import sb3_and_cpprb
from tests.docs import test_api_pages, test_method_docs


@pytest.mark.parametrize("module", [hugging_face, sb3_and_cpprb, minari])
def test_examples_in_docstrings_run(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=options).failed == 0


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
