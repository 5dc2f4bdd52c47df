from tests.cli.conftest import filled, run

__all__ = ["filled", "run"]
