"""The words of a statement, as PostgreSQL reads them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from sqlbuffer.errors import StorageReadOnlyError


class Token(NamedTuple):
    """A word or a sign of a statement of PostgreSQL.

    Attributes:
        kind: `name`, `quoted` (a quoted name), `string`, `number` or `sign`.
        text: A name in the server's form; otherwise the text as written.
        start: Position of its first character.
    """

    kind: str
    text: str
    start: int


_LEXED = re.compile(
    r"""(?P<space>[ \t\n\r\f\v]+|--[^\n\r]*)
    |(?P<comment>/\*)
    |(?P<unicode>[uU]&["'])
    |(?P<escaped>[eE]'(?:[^'\\]|\\.|'')*')
    |(?P<string>'[^']*')
    |(?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$)
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<name>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
    |(?P<number>\$?[0-9]+)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_QUERIES = {"(", "select", "table", "values", "with"}
_EXPLAIN_OPTIONS = {"analyse", "analyze", "verbose"}
_CONTINUED = re.compile(r"(?:[ \t\n\r\f\v]|--[^\n\r]*)*'")


def tokens(statement: str) -> list[Token]:
    """Return the words of a statement as PostgreSQL reads them, without comments.

    Raises:
        StorageReadOnlyError: A name with escapes, which may be any name.
    """
    found, at = [], 0
    while at < len(statement):
        match = _LEXED.match(statement, at)
        assert match is not None
        kind, text, end = match.lastgroup or "", match[0], match.end()
        if kind == "unicode":
            raise StorageReadOnlyError(
                f"{text[:2]} at character {at + 1} may hide a name; this connection is read-only "
                "and takes names and texts without escapes"
            )
        if kind == "comment":
            end = _after_comment(statement, end)
        elif kind == "escaped":
            # A second part, on another line, has escapes too.
            if _CONTINUED.match(statement, end):
                raise StorageReadOnlyError(
                    f"the text at character {at + 1} continues after its end; this connection is "
                    "read-only and takes each text in one piece"
                )
            found.append(Token("string", text, at))
        elif kind == "dollar":
            end = statement.find(text, end)
            end = len(statement) if end < 0 else end + len(text)
            found.append(Token("string", statement[at:end], at))
        elif kind == "quoted":
            found.append(Token(kind, text[1:-1].replace('""', '"'), at))
        elif kind == "name":
            found.append(Token(kind, re.sub("[A-Z]+", lambda m: m[0].lower(), text), at))
        elif kind != "space":
            found.append(Token(kind, text, at))
        at = end
    return found


def is_show(words: Sequence[Token]) -> bool:
    """Return True if a statement shows settings."""
    rest = words[:-1] if words and words[-1].text == ";" else words
    return (
        len(rest) > 1
        and (rest[0].kind, rest[0].text) == ("name", "show")
        and all(word.kind in ("name", "quoted") or word.text == "." for word in rest)
    )


def explained(statement: str, words: Sequence[Token]) -> str | None:
    """Return the statement that an EXPLAIN is for; None if it is not an EXPLAIN."""
    if not words or (words[0].kind, words[0].text) != ("name", "explain"):
        return None
    rest = words[1:]
    if len(rest) > 1 and rest[0].text == "(" and rest[1].text not in _QUERIES:
        ends = [number for number, word in enumerate(rest) if word.text == ")"]
        rest = rest[ends[0] + 1 :] if ends else []
    else:
        while rest and rest[0].kind == "name" and rest[0].text in _EXPLAIN_OPTIONS:
            rest = rest[1:]
    return statement[rest[0].start :] if rest else ""


def _after_comment(statement: str, at: int) -> int:
    depth = 1
    for match in re.compile(r"/\*|\*/").finditer(statement, at):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(statement)
