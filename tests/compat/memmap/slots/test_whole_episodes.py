"""Rows of whole episodes are joined by the database: to the byte as they were written."""

import sqlite3

import numpy as np
import pytest

import sqlbuffer
from sqlbuffer.compat.memmap import ReplayBuffer

FIELDS = {"raw": ("uint8", (256,)), "x": "float"}
BYTES = np.arange(256, dtype=np.uint8)


@pytest.fixture
def of_50(make):
    return make(fields=FIELDS, meta_fields=None, max_timesteps=50)


def store(buffer, n=40):
    rows = np.stack([np.roll(BYTES, i) for i in range(n)])
    buffer.store_episode(raw=rows, x=np.arange(n, dtype="f4"))
    return rows


def test_whole_episodes_of_any_bytes_come_back_as_they_were(of_50):
    rows = store(of_50)
    store(of_50, n=50)
    np.testing.assert_array_equal(of_50.data["raw"][0, :40], rows)
    np.testing.assert_array_equal(of_50.data["x"][1], np.arange(50))


def test_steps_whose_rows_were_deleted_have_defaults(of_50, buffer_url):
    rows = store(of_50)
    with sqlbuffer.ReplayBuffer(buffer_url, name="memmap") as core:
        assert core.delete({"field": "exp_meta.step", "op": "eq", "value": 7}) == 1
    rows[7] = 0
    np.testing.assert_array_equal(of_50.data["raw"][0, :40], rows)


@pytest.mark.parametrize("n", [8, 49])
def test_long_runs_are_read_wherever_they_begin(of_50, n):
    store(of_50, n=50)
    np.testing.assert_array_equal(of_50.data["x"][0, 50 - n :], np.arange(50 - n, 50))


def test_a_file_in_utf_16_is_read_to_the_byte_too(tmp_path):
    file = tmp_path / "wide.sqlite"
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA encoding = 'UTF-16'")
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    url = f"sqlite:///{file}"
    sqlbuffer.ReplayBuffer(url, create=True).close()
    buffer = ReplayBuffer(url, max_episodes=3, max_timesteps=50, fields=FIELDS)
    rows = store(buffer)
    np.testing.assert_array_equal(buffer.data["raw"][0, :40], rows)
    buffer.close()
