"""Database URLs as messages may show them."""

from sqlalchemy.engine import URL

_SECRETS = ("password", "passfile", "sslpassword")


def shown_url(url: URL) -> str:
    """Return a URL without its passwords and its driver: as other programs take it too."""
    shown = url.set(drivername=url.get_backend_name()).difference_update_query(_SECRETS)
    return shown._replace(password=None).render_as_string()
