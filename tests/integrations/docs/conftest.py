"""What reads a page, and the programs of PostgreSQL that pages use."""

from tests.docs.conftest import postgres_programs, read

__all__ = ["postgres_programs", "read"]
