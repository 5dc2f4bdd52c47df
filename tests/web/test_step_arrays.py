"""Numbers and images of steps, from any value."""

import struct
import zlib

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta
from sqlbuffer.web.step_arrays import MOST_POINTS, arrays_of, curve_of, is_image, png_of


def decoded(png):
    """Return the pixels of a PNG without filters, with the standard library alone."""
    place, content = 8, b""
    while place < len(png):
        (length,), kind = struct.unpack(">I", png[place : place + 4]), png[place + 4 : place + 8]
        body = png[place + 8 : place + 8 + length]
        assert struct.unpack(">I", png[place + 8 + length : place + 12 + length]) == (
            zlib.crc32(kind + body),
        )
        if kind == b"IHDR":
            width, height, _, colors, *_ = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            content += body
        place += 12 + length
    channels = {0: 1, 2: 3, 6: 4}[colors]
    lines = np.frombuffer(zlib.decompress(content), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize("shape", [(8, 12), (8, 12, 1), (9, 8, 3), (8, 8, 4)])
def test_an_image_is_a_png_of_the_same_pixels(shape):
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    assert np.array_equal(decoded(png_of(pixels)), pixels.reshape(*shape[:2], -1))


def test_channels_may_come_first():
    pixels = np.random.default_rng(1).integers(0, 256, (3, 16, 20), np.uint8)
    assert np.array_equal(decoded(png_of(pixels)), np.moveaxis(pixels, 0, 2))


def test_a_thumbnail_and_a_huge_image_are_small():
    huge = np.zeros((20_000, 300), np.uint8)
    assert decoded(png_of(huge)).shape[0] <= 4_096
    assert decoded(png_of(huge, 128)).shape[0] <= 128


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 8), np.uint8), np.zeros((8, 8, 2), np.uint8), np.zeros((8, 8), np.float32),
        np.zeros(64, np.uint8), np.zeros((8, 8, 0), np.uint8), np.zeros((2, 2), np.uint8),
        np.zeros((2, 8, 8, 3), np.uint8), np.zeros((), np.uint8),
    ],
)  # fmt: skip
def test_other_arrays_are_no_images(array):
    assert not is_image(array)
    assert png_of(array) is None


def test_numbers_are_found_in_fields_and_in_json():
    data = Experience(
        state={"x": [1, 2], "a/b": {"c~": 3}, "text": "no", "mixed": [1, "x"], "none": None},
        actions=[0],
        reward_t=0.0,
        v_t=float("nan"),
        extra={"big": 10**400, "array": np.zeros((2, 3))},
    )
    row = DataRow(ExpMeta("t"), data, fields={"obs": np.zeros(4, np.float32)})
    found = arrays_of(row)
    assert list(found) == [
        "reward", "value", "obs", "state/x", "state/a~1b/c~0", "actions", "extra/big",
        "extra/array",
    ]  # fmt: skip
    assert found["extra/big"] == np.inf


def test_a_state_of_many_keys_gives_so_many_curves():
    row = DataRow(ExpMeta("t"), Experience(state={str(i): i for i in range(10_000)}))
    assert len(arrays_of(row)) == 64


def test_small_arrays_are_drawn_number_by_number_and_large_ones_by_their_range():
    small = curve_of("x", [0, 1], [np.array([1, 2]), None])
    assert {name: values[0] for name, values in small.lines.items()} == {"[0]": 1, "[1]": 2}
    large = curve_of("x", [0], [np.arange(100)])
    assert {name: values[0] for name, values in large.lines.items()} == {
        "min": 0, "mean": 49.5, "max": 99,
    }  # fmt: skip
    varying = curve_of("x", [0, 1, 2], [np.arange(3), np.arange(5), np.arange(0)])
    assert varying.lines["max"][:2].tolist() == [2, 4]
    assert np.isnan(varying.lines["max"][2])


def test_a_long_curve_keeps_its_extremes():
    values = [np.asarray(0.0)] * 100_000
    values[54_321] = np.asarray(7.0)
    curve = curve_of("reward", range(100_000), values)
    assert len(curve.x) <= MOST_POINTS
    assert np.nanmax(curve.lines["reward"]) == 7.0
    assert (np.diff(curve.x) >= 0).all()


def test_numbers_that_json_lacks_are_null():
    values = [np.asarray(np.nan), np.asarray(np.inf), np.asarray(1)]
    (series,) = curve_of("x", [0, 1, 2], values).as_json()["series"]
    assert series["values"] == [None, None, 1.0]
