"""Any value as a text that a person reads."""

import json
from typing import Any

from sqlbuffer.display.jsonable import dumps


def readable(value: Any) -> str:
    """Return any value as a text: JSON with indents, or Python's text of it.

    Example:
        >>> readable({"a": [1]})
        '{\\n  "a": [\\n    1\\n  ]\\n}'
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(json.loads(dumps(value)), indent=2, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return f"<{type(value).__name__}>"
