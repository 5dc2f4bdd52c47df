from tests.compat.minestudio.conftest import make

__all__ = ["make"]
