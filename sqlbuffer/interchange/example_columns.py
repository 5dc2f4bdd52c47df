"""The columns of a step that a training program reads."""

from collections.abc import Collection, Sequence

from sqlbuffer.interchange.buffer_stream import chosen_columns

# Built-in columns of an example, by default.
EXAMPLE_COLUMNS = (
    "seq", "task_id", "agent_id", "episode_id", "t", "step", "model_version", "reward",
    "terminated", "truncated", "state", "actions", "messages", "extra",
)  # fmt: skip


def example_columns(
    fields: Collection[str], columns: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the built-in columns and the typed fields of an example.

    Args:
        fields: The typed fields that the buffer has.
        columns: Names of both kinds; None: all fields, the keys, the reward, the flags and the JSON
            values.

    Raises:
        FieldError: There is none of that name.

    Example:
        >>> example_columns(["obs"], ["reward", "obs"])
        (('reward',), ('obs',))
    """
    own, chosen = chosen_columns(tuple(fields), columns)
    if columns is None:
        own = tuple(name for name in EXAMPLE_COLUMNS if name not in chosen)
    return own, chosen
