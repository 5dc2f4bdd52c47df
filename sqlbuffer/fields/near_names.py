"""The name that was probably meant by an unknown one."""

import difflib
from collections.abc import Collection

# A shorter beginning of a name is that of too many others.
_SHORTEST = 3
# Names of other buffers that look like none of ours.
_SYNONYMS = {
    **dict.fromkeys(("done", "dones"), ("terminated", "truncated")),
    **dict.fromkeys(("timeout", "timeouts"), ("truncated",)),
    **dict.fromkeys(("next_state", "next_states"), ("next_obs",)),
}


def near_name(name: object, known: Collection[str]) -> str | None:
    """Return the known name that is most like another one; None: none is like it.

    One that begins with the other is an abbreviation: `obs` of `observation`. For a name that other
    buffers use for two of them, both are returned as text.

    Example:
        >>> near_name("observation", ["action", "obs"]), near_name("acton", ["action", "obs"])
        ('obs', 'action')
        >>> near_name("done", ["reward", "terminated", "truncated"])
        'terminated or truncated'
    """
    text = name[:100] if isinstance(name, str) else ""
    if meant := [each for each in _SYNONYMS.get(text, ()) if each in known]:
        return " or ".join(meant)
    found = difflib.get_close_matches(text, known, n=1)
    if found:
        return found[0]
    short = [
        each
        for each in known
        if min(len(each), len(text)) >= _SHORTEST
        and (text.startswith(each) or each.startswith(text))
    ]
    return max(short, key=len, default=None)
