"""The calls about training sessions and model versions."""

from sqlbuffer.arguments import checked_clock, checked_session
from sqlbuffer.front.shared import Parts
from sqlbuffer.steps.ids import uuid7


class Sessions(Parts):
    """The calls of `ReplayBuffer` about sessions and the versions of their models."""

    # The session that this object started, here or in the process that it was pickled in.
    _own_session: str | None = None

    def start_session(self, session_id: str | None = None) -> str:
        """Begin a session, or resume it, as the current one of the buffer and all its processes.

        The buffer's clock becomes the version that the session has: none for a new one.

        Args:
            session_id: Its key; made when left out.

        Returns:
            The key.

        Raises:
            FieldError: A key that is no text.
            StorageReadOnlyError: The role may not: it is a right of learners.
        """
        key = uuid7() if session_id is None else checked_session(session_id)
        self._store.start_session(key)
        self._own_session = key
        return key

    @property
    def session_id(self) -> str | None:
        """The key of the buffer's current session, whoever started it; None before any was."""
        return self._store.session()

    def set_model_version(self, version: int, session_id: str | None = None) -> bool:
        """Note which version a session's model has.

        The buffer's clock moves along if the session is the current one, or none was ever started:
        a learner that is left over from an earlier session moves nothing.

        Args:
            version: The version; an integer of 64 bits.
            session_id: The session; by default the one that this object started, else the current
                one.

        Returns:
            Whether the clock has moved; False: another session has begun since.

        Raises:
            SessionNotFoundError: The buffer has no session of that key.
            StorageReadOnlyError: The role may not: it is a right of learners.
            TypeError: No integer.
            ValueError: More than 64 bits.
        """
        number = checked_clock(version, "a model version")
        key = self._own_session if session_id is None else checked_session(session_id)
        return self._store.set_version(number, key)

    def model_version(self) -> int | None:
        """Return the version of the current session's model, or what `set_clock` set; None before.

        One read by key, from any process: for collectors that ask before each episode.
        """
        return self._store.clock
