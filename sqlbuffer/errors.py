"""Every error the library raises, named for what the user can do about it."""


class SQLBufferError(Exception):
    """Root of all errors of this library."""


class StorageError(SQLBufferError):
    """The database refused an operation for a reason that has no narrower name; the message quotes
    it.
    """


class StorageUnreachableError(StorageError):
    """The database could not be reached: check the URL, the server and the network."""


class WrongPasswordError(StorageUnreachableError):
    """The server refused the password: correct the password, or the name of the user."""


class RoleMissingError(StorageUnreachableError):
    """The server has no such user: correct the name, or have the role made."""


class DatabaseMissingError(StorageUnreachableError):
    """The server has no such database: correct the name, or create the database."""


class StorageBusyError(StorageError):
    """The database stayed locked for the whole timeout: try again, or raise the timeout."""


class StorageReadOnlyError(StorageError):
    """The database, or the role that opened it, may not write."""


class ReadLimitError(StorageError):
    """A statement took more time or memory than readers may: the message names the limit; ask for
    less.
    """


class StorageFullError(StorageError):
    """The disk is full: free space and write again; nothing of the batch was stored."""


class SchemaMissingError(StorageError):
    """The database has no sqlbuffer schema: run the command in the message."""


class NamesTakenError(StorageError):
    """The database has tables of another program by names that the schema needs: use another
    database.
    """


class SchemaOutdatedError(StorageError):
    """The schema is older than the package: run the command in the message."""


class SchemaTooNewError(StorageError):
    """The schema is newer than the package: upgrade the package."""


class URLError(SQLBufferError, ValueError):
    """The database URL cannot be used: the message shows a correct one."""


class ConditionError(SQLBufferError, ValueError):
    """A condition is malformed or names an unknown field."""


class FieldError(SQLBufferError, ValueError):
    """A value cannot be stored: the message names the row and the path inside it."""


class ImmutableRowError(SQLBufferError, TypeError):
    """A stored row was changed or deleted through the ORM: the message names the call to use."""


class BufferConfigError(SQLBufferError, ValueError):
    """A setting is wrong, or not the stored one: the message names it, and what is expected or
    stored.
    """


class EpisodeExistsError(SQLBufferError, ValueError):
    """An episode of that id is stored already: take another id, or have one made."""


class BufferNotFoundError(SQLBufferError, KeyError):
    """No buffer of that name in the database."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class SessionNotFoundError(SQLBufferError, KeyError):
    """No session of that key in the buffer: start it, or name one that was started."""

    __str__ = Exception.__str__


class CopyError(SQLBufferError):
    """A buffer cannot be copied into another one: the message says what differs, or which steps are
    missing, and what to do.
    """


class ExportError(SQLBufferError):
    """A buffer cannot be exported to a place: the message says why, and what to do."""


class FileImportError(SQLBufferError, ValueError):
    """Files cannot be imported: the message names the file, the column or the line, and says what
    is expected.
    """


class InsufficientDataError(SQLBufferError, ValueError):
    """Fewer experiences match than a strict call asked for."""


class FlowControlError(SQLBufferError, TimeoutError):
    """A buffer's rate limiter did not let rows in or out in time: the message says which side is
    behind, and what to do.
    """


class LeaseLostError(SQLBufferError):
    """A lease ran out before it was renewed or acknowledged: its rows are others' to claim, and
    this use of them is not counted. Lease for longer, or renew sooner.
    """


class MirrorFullError(SQLBufferError, MemoryError):
    """A buffer has grown past the `max_bytes` of its mirror: the message says what would fit."""


class MirrorBehindError(SQLBufferError, TimeoutError):
    """A mirror is further behind the database than its `max_lag_s`: the message says why."""


class MissingExtraError(SQLBufferError, ImportError):
    """An optional library is not installed: the message names the extra."""
