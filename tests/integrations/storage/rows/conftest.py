from tests.query.conftest import buffer_of, buffers, url_of

__all__ = ["buffer_of", "buffers", "url_of"]
