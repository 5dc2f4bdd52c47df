import doctest

from sqlbuffer.integrations import torchrl


def test_examples_in_docstrings_run() -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(torchrl, optionflags=options).failed == 0


def test_every_public_class_has_an_example() -> None:
    assert all(">>> " in (getattr(torchrl, name).__doc__ or "") for name in torchrl.__all__)
