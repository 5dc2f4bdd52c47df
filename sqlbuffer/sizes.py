"""Sizes in bytes as text for people."""


def shown_size(n_bytes: float) -> str:
    """Return a number of bytes in the unit that fits it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.3g} TB"
