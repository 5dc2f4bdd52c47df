"""Database URLs as messages may show them."""

from sqlalchemy.engine import URL

_SECRETS = ("password", "passfile", "sslpassword")


def shown_url(url: URL) -> str:
    """Return a URL without its password, wherever it stands in it."""
    hidden = {name: "***" for name in _SECRETS if name in url.query}
    return url.update_query_dict(hidden).render_as_string()
