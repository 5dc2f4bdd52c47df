"""Texts of users as a page shows them: without control characters, long ones cut."""

import re
from dataclasses import dataclass

# A text that is not longer is shown in full.
SHOWN_LINES, SHOWN_CHARS = 24, 1_600
# Number of characters of a longer text that the page contains, folded. The rest has its own URL.
FOLDED_CHARS = 16_000
EXCERPT_CHARS = 160

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True)
class ShownText:
    """A text as a page shows it.

    Attributes:
        head: Part that is shown immediately.
        rest: Lines after the head, shown on a click.
        n_chars: Characters of the whole text.
        n_lines: Lines of the whole text.
        is_cut: True if the text continues after the rest.
    """

    head: str
    rest: str
    n_chars: int
    n_lines: int
    is_cut: bool

    def __bool__(self) -> bool:
        return self.n_chars > 0


def printable(text: str) -> str:
    """Return a text without characters that a page cannot hold, or that would reorder it.

    Control characters become their pictures, and lone surrogates and marks of direction U+FFFD.

    Example:
        >>> printable("a\\0b")
        'a␀b'
    """
    return _UNPRINTABLE.sub(_picture, text)


def shown_text(text: str) -> ShownText:
    """Return what is shown of a text.

    Example:
        >>> shown_text("one\\ntwo").head
        'one\\ntwo'
    """
    end = _head_end(text)
    stop = min(len(text), FOLDED_CHARS) if end < len(text) else end
    return ShownText(
        printable(text[:end]), printable(text[end:stop]), len(text),
        text.count("\n") + 1 if text else 0, stop < len(text),
    )  # fmt: skip


def first_line(text: str, most: int = 120) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text[: 4 * most].split())
    return printable(line if len(line) <= most and len(text) <= 4 * most else f"{line[:most]}…")


def excerpts(text: str, wanted: str, most: int = 3) -> list[str]:
    """Return the surroundings of the first places where a text has another, in any case."""
    found = []
    for match in re.finditer(re.escape(wanted), text, re.IGNORECASE):
        start, stop = max(match.start() - EXCERPT_CHARS, 0), match.end() + EXCERPT_CHARS
        found.append(printable(text[start:stop]))
        if len(found) == most:
            break
    return found


def has_text(text: str, wanted: str) -> bool:
    """Return True if a text has another, in any case."""
    return re.search(re.escape(wanted), text, re.IGNORECASE) is not None


def pieces(text: str, wanted: str) -> list[tuple[str, bool]]:
    """Return a text in pieces, and which of them are what is looked for.

    Example:
        >>> pieces("To be", "be")
        [('To ', False), ('be', True)]
    """
    if not wanted:
        return [(text, False)]
    parts = re.split(f"({re.escape(wanted)})", text, flags=re.IGNORECASE)
    return [(part, i % 2 == 1) for i, part in enumerate(parts) if part]


def _head_end(text: str) -> int:
    """Return the end of the part that is shown immediately; a few extra lines are shown too."""
    if len(text) <= SHOWN_CHARS * 5 // 4 and text.count("\n") < SHOWN_LINES * 5 // 4:
        return len(text)
    end = 0
    for _ in range(SHOWN_LINES):
        found = text.find("\n", end, SHOWN_CHARS)
        if found < 0:
            break
        end = found + 1
    else:
        return end
    return SHOWN_CHARS if len(text) > SHOWN_CHARS else len(text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"
