"""What reads a page."""

from tests.docs.conftest import read

__all__ = ["read"]
