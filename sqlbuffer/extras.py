"""Commands for messages about installing; they name the checkout, since no index has sqlbuffer."""

UPGRADE = "`git pull && pip install .` in the checkout of sqlbuffer"


def install(extra: str) -> str:
    """Return the command that installs an extra.

    Example:
        >>> install("torch")
        "`pip install '.[torch]'` in the checkout of sqlbuffer"
    """
    return f"`pip install '.[{extra}]'` in the checkout of sqlbuffer"
