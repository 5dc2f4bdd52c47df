"""Find the messages of a step that only repeat the conversation so far."""

from collections.abc import Sequence

from sqlbuffer.web.transcript.said_parts import Said

_Token = tuple[str, int, int]


def n_repeated(conversation: Sequence[Said], new: Sequence[Said]) -> tuple[int, int]:
    """Return the number of messages at the beginning of a step that repeat the conversation so far.

    A step may contain the whole context up to it, a window of it, or only new messages. In a
    repeated context, the assistant's texts may differ from its answers, for example without its
    reasoning. The time is linear in the number of messages.

    Args:
        conversation: Messages before the step.
        new: Messages of the step.

    Returns:
        The number of repeated messages, and the number of these at the end of the conversation.
        They differ by one if a window begins with the system message.

    Example:
        >>> said = [Said("user", "2 + 2?"), Said("assistant", "4")]
        >>> n_repeated(said, [*said, Said("user", "Sure?")])
        (2, 2)
    """
    if not conversation or not new:
        return 0, 0
    ours, theirs = [*map(_token, conversation)], [*map(_token, new)]
    n = _overlap(ours, theirs)
    if n < len(ours) and theirs[0] == ours[0] and ours[0][0] == "system":
        n_behind = _overlap(ours, theirs[1:])
        if n_behind + 1 > n:
            return n_behind + 1, n_behind
    return n, n


def n_same(one: Sequence[Said], other: Sequence[Said]) -> int:
    """Return how many messages at the beginning of two lists are the same."""
    pairs = enumerate(zip(map(_token, one), map(_token, other), strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def is_among(answers: Sequence[Said], given: Sequence[Said]) -> bool:
    """Return True if the messages of a step already contain its action, in the same order."""
    tokens = iter([_token(said) for said in given if said.role == "assistant"])
    return bool(answers) and all(_token(said) in tokens for said in answers)


def _token(said: Said) -> _Token:
    # A tool call may look different in an agent's answer and in its context.
    return said.role, len(said.text), hash(said.text)


def _overlap(ours: Sequence[_Token], theirs: Sequence[_Token]) -> int:
    """Return how many messages at the end of a conversation are those that new ones begin with."""
    alike = _border([*map(_without_answers, theirs)], [*map(_without_answers, ours)])
    # Answers may differ, next to a question that is the same.
    if any(token[0] != "assistant" for token in theirs[:alike]):
        return alike
    return _border(theirs, ours)


def _without_answers(token: _Token) -> _Token:
    return ("assistant", 0, 0) if token[0] == "assistant" else token


def _border(head: Sequence[_Token], tail: Sequence[_Token]) -> int:
    """Return the length of the longest beginning of one list that is an end of the other (the
    prefix function of Knuth, Morris and Pratt).
    """
    text: list[_Token | None] = [*head, None, *tail[-len(head) :]] if head else []
    lengths = [0] * len(text)
    for i in range(1, len(text)):
        n = lengths[i - 1]
        while n and text[i] != text[n]:
            n = lengths[n - 1]
        lengths[i] = n + (text[i] == text[n])
    return lengths[-1] if lengths else 0
