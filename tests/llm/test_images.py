"""Images in messages, in every form that the APIs of language models have."""

import base64
import struct
import zlib
from typing import Any

import numpy as np
import pytest

from sqlbuffer.llm.conversations import joined_messages
from sqlbuffer.llm.images import png

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
FILE = png(PIXELS)
TEXT = base64.b64encode(FILE).decode()
URL = f"data:image/png;base64,{TEXT}"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "image_url", "image_url": URL},
        {"type": "input_image", "image_url": URL, "detail": "low"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": TEXT}},
        {"type": "image", "data": TEXT, "mimeType": "image/png"},
        {"type": "image", "base64": TEXT},
        {"type": "image", "image": FILE},
        {"type": "image", "image": PIXELS},
        {"type": "image", "image": {"bytes": FILE, "path": None}},
        URL, FILE, bytearray(FILE), PIXELS,
    ],
)  # fmt: skip
def test_an_image_is_a_part_with_its_file(part: Any) -> None:
    for content in ([{"type": "text", "text": "What?"}, part], [part, "What?"]):
        message = {"role": "user", "content": content}
        image = {"type": "image", "base64": TEXT}
        text = {"type": "text", "text": "What?"}
        expected = [text, image] if content[1] is part else [image, text]
        # A context that is given again does not repeat the image.
        steps = [([message], ["A cat."]), ([message], [message])]
        said = joined_messages(steps)
        assert [one["content"] for one in said] == [expected, "A cat.", expected]


def test_pixels_are_a_png_that_can_be_read() -> None:
    for shape in ((3, 5), (3, 5, 1), (3, 5, 2), (3, 5, 3), (3, 5, 4)):
        pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        width, height, depth, color = struct.unpack(">IIBB", png(pixels)[16:26])
        n_channels = {0: 1, 2: 3, 4: 2, 6: 4}[color]
        data = png(pixels)
        length = struct.unpack(">I", data[33:37])[0]
        lines = np.frombuffer(zlib.decompress(data[41 : 41 + length]), np.uint8)
        lines = lines.reshape(height, 1 + width * n_channels)
        assert (depth, lines[:, 0].any()) == (8, False)
        assert (lines[:, 1:].reshape(shape) == pixels).all()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}, "has the address"),
        ({"type": "image", "source": {"type": "url", "url": "https://x.org/a.png"}}, "the address"),
        ({"type": "image", "image": "cat.png"}, "has the address 'cat.png', and not its data"),
        ({"type": "image"}, "a part of the type 'image' in a message has no image"),
        ({"type": "image", "data": "not base64!"}, "is not base64: 'not base64!'"),
        ({"type": "image", "image": b"MZ..."}, "bytes in a message are not an image"),
        ({"type": "image", "image": PIXELS.astype(np.float32)}, r"not an array of the shape \(2,"),
        ({"type": "image", "image": PIXELS[:0]}, r"not an array of the shape \(0, 4, 3\)"),
        ({"type": "image", "image": 5}, "and not int"),
        (np.zeros((2, 4, 3)), "would become text"),
        (b"MZ...", "bytes in a message would become text"),
    ],
)
def test_an_image_without_its_data_is_refused(part: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        joined_messages([([{"role": "user", "content": ["What?", part]}], None)])


def test_an_image_as_an_action_is_refused() -> None:
    with pytest.raises(ValueError, match="'image' in a message would become text"):
        joined_messages([(["Draw."], [{"type": "image", "image": FILE}])])
