"""Commands of the command line, for tests of what they do to the storage."""

from tests.cli.conftest import filled, login, run, with_roles

__all__ = ["filled", "login", "run", "with_roles"]
