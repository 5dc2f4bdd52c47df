"""Limits of statements that read: time, memory, and the text of a statement."""

from sqlbuffer.errors import ReadLimitError, StorageError

# The execution option of a connection for the time limit of its transaction; None for no limit.
TIME_S = "sqlbuffer_time_s"

# A statement that makes the process grow by more is ended.
MAX_GROWTH_BYTES = 512 * 2**20
MAX_STATEMENT_BYTES = 100_000


def passed_limit(
    driver: object, error: BaseException | None, time_s: float | None
) -> StorageError | None:
    """Return the error of a statement that passed a limit; None if it failed for another reason.

    Args:
        driver: The driver's connection.
        error: Error that it raised.
        time_s: The time limit in seconds.
    """
    passed = getattr(driver, "passed", None)
    if passed is None and getattr(error, "sqlstate", None) == "57014" and time_s is not None:
        passed = "time"
    if passed == "time":
        return time_passed(time_s)
    if passed == "memory":
        return memory_passed()
    return None


def memory_passed() -> ReadLimitError:
    """Return the error of a statement that took too much memory."""
    return ReadLimitError(
        f"the statement took more than {MAX_GROWTH_BYTES >> 20} MB of memory; "
        "ask for fewer or smaller values"
    )


def time_passed(time_s: float | None) -> ReadLimitError:
    """Return the error of a statement that passed the time limit."""
    limit = "its time limit" if time_s is None else f"the limit of {time_s:g} s"
    return ReadLimitError(f"the statement took longer than {limit}; add a condition or a LIMIT")


def check_text(statement: str) -> None:
    """Raise StorageError for a text that cannot be a statement."""
    try:
        size = len(statement.encode())
    except UnicodeEncodeError:
        raise StorageError("the statement is not valid Unicode; type it again") from None
    if "\0" in statement:
        raise StorageError("the statement has a NUL character; remove it")
    if size > MAX_STATEMENT_BYTES:
        raise StorageError(
            f"the statement has {size:,} bytes; the longest may have {MAX_STATEMENT_BYTES:,}"
        )
