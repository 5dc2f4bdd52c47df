from tests.query.conftest import buffer, buffer_of, kind, url_of

__all__ = ["buffer", "buffer_of", "kind", "url_of"]
