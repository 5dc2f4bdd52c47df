from tests.loading.conftest import buffer

__all__ = ["buffer"]
