"""The command line on a terminal."""

import fcntl
import os
import pty
import re
import struct
import termios
from contextlib import suppress

from tests.cli.conftest import start

_STYLE = re.compile("\x1b\\[[0-9;]*m")


class Terminal:
    """What a command showed on a terminal, with and without styles, and its exit code."""

    def __init__(self, shown: str, exit_code: int) -> None:
        self.styled, self.exit_code = shown, exit_code
        self.text = _STYLE.sub("", shown)


def run_on_terminal(*arguments: str, answer: str = "", width: int = 80) -> Terminal:
    """Run a command whose standard streams are one terminal; type an answer in advance."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(width)}
    environment.pop("NO_COLOR", None)
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = start(*arguments, **streams, env=environment)
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    with suppress(OSError):  # Linux ends a terminal that nobody holds with an error
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    return Terminal(shown.decode().replace("\r\n", "\n"), process.wait(60))
