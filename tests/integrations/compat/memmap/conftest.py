from tests.compat.memmap.conftest import make, reopen

__all__ = ["make", "reopen"]
