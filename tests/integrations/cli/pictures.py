"""Take the pictures of the command line for the docs: `make terminal-pictures`."""

import io
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from sqlbuffer import ReplayBuffer
from tests.integrations.cli.terminal import run_on_terminal
from tests.integrations.web.screenshots import conversation
from tests.support.markdown import ROOT

FOLDER = ROOT / "docs" / "images"
# The typed line by the name of its picture, the width of the terminal, and how many lines of the
# answer are shown.
PICTURES: dict[str, tuple[str, int, int]] = {
    "demo": ("sqlbuffer demo --url sqlite:///replay.db", 88, 24),
    "watch": ("sqlbuffer watch replay.db --once", 96, 12),
    "show": ("sqlbuffer show agent.db 'root of 5'", 88, 30),
}
# Moves of the cursor: a progress bar is drawn again and again.
_LAST_FRAME = re.compile(r"(?:\x1b\[1A|\x1b\[2K|\r)+")
_OTHER_CODES = re.compile(r"\x1b\[[?0-9;]*[A-LN-Za-ln-z]|\x1b\[\?[0-9]+[hl]")
# Without the web fonts that rich names: a picture loads nothing.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def answer_of(line: str, width: int) -> str:
    """Return the last state of a terminal after a command, with its styles."""
    words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)][1:]
    done = run_on_terminal(*words, width=width)
    assert done.exit_code == 0, done.text
    return _OTHER_CODES.sub("", _LAST_FRAME.split(done.styled)[-1])


def picture(line: str, answer: str, width: int, n_lines: int) -> str:
    """Return an SVG of a terminal with a command and the first lines of its answer."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "green"), (line, "bold")))
    shown = answer.rstrip().split("\n")
    for text in islice(shown, n_lines):
        console.print(Text.from_ansi(text), overflow="crop", no_wrap=True)
    if len(shown) > n_lines:
        console.print(Text("...", "dim"))
    svg = _FONTS.sub("", console.export_svg(title="", unique_id="terminal"))
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)


@contextmanager
def folder_with_data() -> Iterator[None]:
    """Work in a folder with a database of conversations; the demo fills the other one."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            rng = np.random.default_rng(7)
            with ReplayBuffer("agent.db") as buffer:
                for number in range(16):
                    buffer.store_batch([*conversation(number, rng)])
            yield
        finally:
            os.chdir(before)


def main() -> None:
    """Take them."""
    with folder_with_data():
        answers = {name: answer_of(line, width) for name, (line, width, _) in PICTURES.items()}
    for name, (line, width, n_lines) in PICTURES.items():
        path = FOLDER / f"terminal-{name}.svg"
        path.write_text(picture(line, answers[name], width, n_lines), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
