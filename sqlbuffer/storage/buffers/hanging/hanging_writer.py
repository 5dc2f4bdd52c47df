"""A writer whose transaction stays open."""

from dataclasses import dataclass

# A transaction of a writer takes milliseconds. After this time something is wrong with it.
HANGING_S = 5.0


@dataclass(frozen=True)
class HangingWriter:
    """A process whose transaction has been writing to a buffer for more than 5 seconds.

    Attributes:
        pid: The process: on PostgreSQL that of the server, for `pg_terminate_backend(pid)`; on
            SQLite the writer's own, on this machine.
        age_s: Age of the transaction, in seconds.
        user: The role on PostgreSQL, the user of the machine on SQLite; None if unknown.
        application: Application name of the connection; on SQLite the name of the program.

    Example:
        >>> writer = HangingWriter(pid=4711, age_s=312.0, user="collector", application="rollouts")
        >>> str(writer)
        "process 4711 of 'collector' ('rollouts'), for 312 s"
    """

    pid: int
    age_s: float
    user: str | None
    application: str | None

    def __str__(self) -> str:
        user = "" if self.user is None else f" of {self.user!r}"
        application = f" ({self.application!r})" if self.application else ""
        return f"process {self.pid}{user}{application}, for {self.age_s:,.0f} s"
