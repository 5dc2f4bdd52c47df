"""Every error that the library raises, named after the action that solves it.

A traceback shows a last line with the command that explains the error.
"""

from collections.abc import Sequence
from typing import Any


class SQLBufferError(Exception):
    """Base class of all errors of this library."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Unpickling sets the notes that were pickled in the place of this one.
        self.add_note(f"See {explained_by(type(self))}")


def explained_by(error: type[SQLBufferError]) -> str:
    """Return the command that explains an error: by the class, or its nearest public base class.

    Example:
        >>> explained_by(StorageFullError)
        '`sqlbuffer errors StorageFullError`'
    """
    public = next(kind for kind in error.__mro__ if kind.__module__ == __name__)
    return f"`sqlbuffer errors {public.__name__}`"


class StorageError(SQLBufferError):
    """The database refused an operation. The message has its reason. Subclasses name frequent
    causes.
    """


class StorageUnreachableError(StorageError):
    """The database did not answer. Check the URL, the server and the network."""


class WrongPasswordError(StorageUnreachableError):
    """The server refused the password. Correct the password or the user name."""


class RoleMissingError(StorageUnreachableError):
    """The server has no such user. Correct the name, or create the role."""


class DatabaseMissingError(StorageUnreachableError):
    """The server has no such database. Correct the name, or create the database."""


class UnsupportedDatabaseError(StorageError):
    """The database lacks a feature that the library needs. The message names it."""


class StorageBusyError(StorageError):
    """The database stayed locked for the whole timeout. Try again, or increase the timeout."""


class StorageReadOnlyError(StorageError):
    """The database, or the role that opened it, does not allow writing."""


class ReadLimitError(StorageError):
    """A statement took more time or memory than a reader may use. The message names the limit."""


class StorageFullError(StorageError):
    """The disk is full. Nothing of the batch was stored: free space and write again."""


class SchemaMissingError(StorageError):
    """The database has no sqlbuffer schema. Run the command in the message."""


class NamesTakenError(StorageError):
    """Tables of another program have names that the schema needs. Use another database."""


class SchemaOutdatedError(StorageError):
    """The schema is older than the package. Run the command in the message."""


class SchemaTooNewError(StorageError):
    """The schema is newer than the package. Upgrade the package."""


class ArgumentError(SQLBufferError, TypeError, ValueError):
    """An argument of a call has another type or value than the call takes. The message names the
    argument, the values that the call takes, and the given value.
    """


class URLError(SQLBufferError, ValueError):
    """The database URL cannot be used. The message shows a correct one."""


class ConditionError(SQLBufferError, ValueError):
    """A condition is malformed, or names an unknown field."""


class FieldError(SQLBufferError, ValueError):
    """A value cannot be stored. The message names the row, and the path inside the row."""


class ImmutableRowError(SQLBufferError, TypeError):
    """The ORM was used to change or delete a stored row. The message names the call to use."""


class BufferConfigError(SQLBufferError, ValueError):
    """A setting is wrong, or differs from the stored one. The message names the setting, and the
    expected or stored value.
    """


class EpisodeExistsError(SQLBufferError, ValueError):
    """The buffer already has an episode with this id. Use another id, or leave the id out."""


class EpisodeRefusedError(SQLBufferError, ValueError):
    """An episode takes no such step or end. The message says why, and what to do instead.

    Attributes:
        episodes: The id and the task of each such episode.
    """

    def __init__(self, message: str, episodes: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.episodes = tuple(episodes)


class EpisodeEndedError(EpisodeRefusedError):
    """The episode has ended. Take another `episode_id`, or continue an aborted or abandoned one
    with `buffer.episode(.., resume=True)`.
    """


class EpisodeTakenError(EpisodeRefusedError):
    """Another writer has continued the episode with `resume=True`, or another worker has taken its
    work item: this writer adds no steps and does not end it. The message says who and when.
    """


class EpisodeNotFoundError(SQLBufferError, KeyError):
    """The buffer has no episode with this id. Store a step of it first, or check the id and the
    task.
    """

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class OutOfOrderError(SQLBufferError, ValueError):
    """A typed step comes after a later one of its episode. Send the steps of an episode in their
    order. The message names the episode and the steps.
    """


class BufferNotFoundError(SQLBufferError, KeyError):
    """The database has no buffer with this name."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class SessionNotFoundError(SQLBufferError, KeyError):
    """The buffer has no session with this key. Start it, or use the key of a started session."""

    __str__ = Exception.__str__


class BatchNotFoundError(SQLBufferError, KeyError):
    """The sample log has no batch of this number. It was never logged, or is too old."""

    __str__ = Exception.__str__


class CheckpointNotFoundError(SQLBufferError, KeyError):
    """A consumer has no checkpoint of this name. The message names those that it has."""

    __str__ = Exception.__str__


class DocumentChangedError(SQLBufferError):
    """A document has another version than the change expected: another process has written it since
    it was read. Read it again, and repeat the change.
    """


class CopyError(SQLBufferError):
    """A buffer cannot be copied. The message names the difference or the missing steps, and the
    remedy.
    """


class ExportError(SQLBufferError):
    """A buffer cannot be exported to this place. The message has the reason and the remedy."""


class FileImportError(SQLBufferError, ValueError):
    """A file cannot be imported, or an export is not complete. The message names the file, the
    column or line, and the expected content.
    """


class InsufficientDataError(SQLBufferError, ValueError):
    """Fewer experiences match than the call needs."""


class FlowControlError(SQLBufferError, TimeoutError):
    """A rate limiter did not let rows in or out in time. The message names the side that is behind,
    and the remedy.
    """


class LeaseLostError(SQLBufferError):
    """A lease ended before it was renewed or acknowledged. Others can claim its rows, and this use
    does not count. Or another worker has a work item. Use a longer lease, or renew it earlier.
    """


class MirrorFullError(SQLBufferError, MemoryError):
    """A buffer needs more memory than `max_bytes` of its mirror. The message says how many steps
    fit.
    """


class MirrorBehindError(SQLBufferError, TimeoutError):
    """A mirror is further behind the database than its `max_lag_s`. The message has the reason."""


class MissingExtraError(SQLBufferError, ImportError):
    """An optional library is not installed. The message names the extra."""


UPGRADE = "`git pull && pip install .` in the checkout of sqlbuffer"


def install(extra: str) -> str:
    """Return the command that installs an extra.

    Example:
        >>> install("torch")
        "`pip install '.[torch]'` in the checkout of sqlbuffer"
    """
    return f"`pip install '.[{extra}]'` in the checkout of sqlbuffer"
