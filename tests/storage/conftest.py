"""Commands of the command line, for tests of what they do to the storage."""

from tests.cli.conftest import filled, login, roles_template, run, url_with_roles, with_roles

__all__ = ["filled", "login", "roles_template", "run", "url_with_roles", "with_roles"]
