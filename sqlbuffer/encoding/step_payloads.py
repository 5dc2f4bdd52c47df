"""Payloads of steps in chunks: a JSON object for each step, and the bytes that it refers to.

The object has those of `state`, `actions`, `messages` and `extra` that the step has. Where these
refer to bytes, `arrays: [start, n_bytes]` is the place of the step's bytes in the bytes of its
chunk; references inside the JSON count from that start. Where the buffer compresses, the bytes of
each step are compressed on their own, and `arrays` is the place of the result.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from orjson import loads

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.plain_json import dumps
from sqlbuffer.encoding.given_columns import PAYLOADS
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import encode_extra, encode_messages
from sqlbuffer.encoding.row_size import check_row_size


class StepPayload(NamedTuple):
    """The payload of one step, as it is collected.

    Attributes:
        members: JSON of its parts by name, without the braces around them.
        arrays: The bytes that they refer to.
        n_bytes: Bytes of both.
    """

    members: str
    arrays: bytearray
    n_bytes: int


class PayloadParts(NamedTuple):
    """JSON of each part of a payload, and the bytes that they refer to."""

    state: str | None
    actions: str | None
    messages: str | None
    extra: str | None
    arrays: Any = b""


def encode_payload(values: Sequence[Any], tags: dict[str, Any]) -> StepPayload | None:
    """Return the payload of a step; None if it has none.

    Args:
        values: Its state, actions, messages and extra; the last one a dict or None.
        tags: Numbers that their columns cannot hold, kept in `extra`.

    Raises:
        FieldError: A value cannot be stored.
    """
    encoder = Encoder()
    state, actions, messages, extra = values
    texts = {
        "state": encoder.json(state, "state"),
        "actions": encoder.json(actions, "actions"),
        "messages": encode_messages(messages, "messages", encoder),
    }
    parts = [f'"{name}":{text}' for name, text in texts.items() if text is not None]
    if tags or extra is not None:
        parts.append(f'"extra":{encode_extra(extra, tags, encoder)}')
    return _payload(parts, encoder.blob)


def _payload(parts: Sequence[str], arrays: bytearray) -> StepPayload | None:
    if not parts:
        return None
    members = ",".join(parts)
    n_members = len(members) if members.isascii() else len(members.encode())
    return StepPayload(members, arrays, n_members + len(arrays))


def collected_payload(parts: PayloadParts) -> StepPayload | None:
    """Return the payload of a step that was split, as it was collected."""
    texts = zip(PAYLOADS, parts, strict=False)
    own = [f'"{name}":{text}' for name, text in texts if text is not None]
    return _payload(own, bytearray(parts.arrays))


def check_step_size(payload: StepPayload | None, n_fields: int, limit: int, where: str) -> None:
    """Raise FieldError if a step is too large; see `check_row_size`.

    Args:
        payload: The payload of the step.
        n_fields: Bytes of its typed fields.
        limit: Bytes that both may have.
        where: How an error names the step.
    """
    if payload is None:
        check_row_size({}, n_fields, limit, where)
    else:
        texts = {name: dumps(part) for name, part in loads(f"{{{payload.members}}}").items()}
        check_row_size(texts, n_fields + len(payload.arrays), limit, where)


def join_payloads(
    layout: Layout, payloads: Sequence[StepPayload | None]
) -> tuple[list[str | None] | None, bytes | None]:
    """Return the payloads of the steps of a chunk as they are stored: `PackedChunk.payloads` and
    `payload_arrays`.
    """
    if not any(payloads):
        return None, None
    if not any(payload and payload.arrays for payload in payloads):
        return [payload and f"{{{payload.members}}}" for payload in payloads], None
    stored = layout.compress([payload and payload.arrays for payload in payloads])
    texts: list[str | None] = []
    start = 0
    for payload, arrays in zip(payloads, stored, strict=True):
        if not arrays:
            texts.append(payload and f"{{{payload.members}}}")
        elif payload:
            texts.append(f'{{{payload.members},"arrays":[{start},{len(arrays)}]}}')
            start += len(arrays)
    return texts, b"".join(filter(None, stored))


def split_payload(
    layout: Layout, text: str | None, payload_arrays: bytes | memoryview | None, seq: Any = None
) -> PayloadParts:
    """Return the parts of the payload of a step, with its own bytes as they were before `pack`.

    Args:
        layout: The typed fields, for the compression.
        text: The JSON of the step.
        payload_arrays: The bytes of its chunk.
        seq: Number of the step, for error messages.

    Raises:
        FieldError: Damaged bytes.
    """
    if text is None:
        return PayloadParts(None, None, None, None)
    tree: dict[str, Any] = loads(text)
    start, size = tree.pop("arrays", (0, 0))
    stored: Any = (payload_arrays or b"")[start : start + size]
    arrays: Any = layout.expand([stored], None if seq is None else [seq])[0]
    texts = {name: dumps(part) for name, part in tree.items()}
    return PayloadParts(
        texts.get("state"), texts.get("actions"), texts.get("messages"), texts.get("extra"), arrays
    )
