import doctest

from sqlbuffer.integrations import sb3


def test_examples_in_docstrings_run() -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(sb3, optionflags=options).failed == 0


def test_every_public_class_has_an_example() -> None:
    assert all(">>> " in (getattr(sb3, name).__doc__ or "") for name in sb3.__all__)
