"""Code blocks of the documents, for tests that run them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: str, *languages: str) -> list[str]:
    """Return the code blocks of a document, named from the top of the tree, in order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [body for language, body in _BLOCK.findall(text) if language in languages]
