"""What the command line prints on standard error."""


def error_lines(text: str) -> list[str]:
    """Return the lines of a text, but for the last with the command that explains the error."""
    lines = text.splitlines()
    return lines[:-1] if lines and lines[-1].startswith("See `sqlbuffer errors") else lines
