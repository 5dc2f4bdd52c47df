"""Names of other libraries that this package does not have, and what to use instead."""

from collections.abc import Mapping


class Alternatives(dict[str, str]):
    """A replacement for each name that this package does not have.

    Args:
        library: Library that has the names.
        instead: Replacements, by name.

    Example:
        >>> alternatives = Alternatives("AWorld", {"RedisStorage": "ReplayBuffer(url=...)"})
        >>> alternatives.message("RedisStorage")
        'sqlbuffer has no RedisStorage of AWorld; instead, ReplayBuffer(url=...)'
    """

    def __init__(self, library: str, instead: Mapping[str, str]) -> None:
        super().__init__(instead)
        self._library = library

    def message(self, name: str) -> str:
        """Return the message about a name."""
        return f"sqlbuffer has no {name} of {self._library}; instead, {self[name]}"

    def error(self, name: str) -> ImportError:
        """Return the error for importing a name."""
        return ImportError(self.message(name))

    def missing(self, module: str, name: str) -> ImportError | AttributeError:
        """Return the error for a name that a module does not have."""
        if name in self:
            return self.error(name)
        return AttributeError(f"module {module!r} has no attribute {name!r}")
