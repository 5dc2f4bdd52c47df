"""Payloads of steps in chunks: a JSON object for each step, and the bytes that it refers to.

The object has those of `state`, `actions`, `messages` and `extra` that the step has. Where these
refer to bytes, `arrays: [start, n_bytes]` is the place of the step's bytes in the bytes of its
chunk; references inside the JSON count from that start. In a buffer with compression these bytes
are compressed by themselves.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from orjson import loads

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.plain_json import dumps
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import encode_extra

_ARRAYS_BYTES = 40  # of `,"arrays":[start,n_bytes]`, at most


class StepPayload(NamedTuple):
    """The payload of one step: JSON of its parts, and the bytes that they refer to."""

    state: str | None
    actions: str | None
    messages: str | None
    extra: str | None
    arrays: bytes | bytearray | memoryview = b""

    @property
    def texts(self) -> dict[str, str | None]:
        """The JSON of each part by name."""
        return dict(zip(self._fields[:4], self[:4], strict=True))

    @property
    def n_bytes(self) -> int:
        """About how many bytes it takes in a chunk."""
        n = sum(len(name) + 4 + len(text.encode()) for name, text in self.texts.items() if text)
        return n + len(self.arrays) + (_ARRAYS_BYTES if self.arrays else 0)


def encode_payload(values: Sequence[Any], tags: Mapping[str, Any]) -> StepPayload:
    """Return the payload of a step.

    Args:
        values: Its state, actions, messages and extra; the last one a dict or None.
        tags: Numbers that their columns cannot hold, kept in `extra`.

    Raises:
        FieldError: A value cannot be stored.
    """
    encoder = Encoder()
    state, actions, messages, extra = values
    texts = (
        encoder.json(state, "state"),
        encoder.json(actions, "actions"),
        encoder.json(messages, "messages"),
        encode_extra(extra, dict(tags), encoder),
    )
    return StepPayload(*texts, encoder.blob)


def join_payloads(
    layout: Layout, payloads: Sequence[StepPayload | None]
) -> tuple[list[str | None] | None, bytes | None]:
    """Return the payloads of the steps of a chunk as they are stored: `PackedChunk.payloads` and
    `payload_arrays`.
    """
    stored = layout.compress([payload and bytes(payload.arrays) for payload in payloads])
    sizes = [len(arrays or b"") for arrays in stored]
    starts = accumulate(sizes, initial=0)
    texts = [
        payload and _object(payload, start, size)
        for payload, start, size in zip(payloads, starts, sizes, strict=False)
    ]
    if not any(texts):
        return None, None
    return [text or None for text in texts], b"".join(filter(None, stored)) or None


def _object(payload: StepPayload, start: int, size: int) -> str:
    parts = [f'"{name}":{text}' for name, text in payload.texts.items() if text is not None]
    if size:
        parts.append(f'"arrays":[{start},{size}]')
    return f"{{{','.join(parts)}}}" if parts else ""


def split_payload(
    layout: Layout, text: str | None, payload_arrays: bytes | memoryview | None, seq: Any = None
) -> StepPayload:
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
        return StepPayload(None, None, None, None)
    tree: dict[str, Any] = loads(text)
    start, size = tree.pop("arrays", (0, 0))
    stored: Any = (payload_arrays or b"")[start : start + size]
    arrays: Any = layout.expand([stored], None if seq is None else [seq])[0]
    texts = {name: dumps(part) for name, part in tree.items()}
    return StepPayload(
        texts.get("state"), texts.get("actions"), texts.get("messages"), texts.get("extra"), arrays
    )
