"""Numbers of rows and ids of buffers, which SQLite packs into one key."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import BufferConfigError, StorageError
from sqlbuffer.storage.schema.number_keys import MOST_BUFFERS, MOST_NUMBERS, NUMBER_BITS
from tests.support.sql import buffer_id, is_sqlite, numbered, run, scalar
from tests.support.stepped_rows import make_row, make_rows, seqs_of, steps_of

INSERT = (
    "INSERT INTO experiences (key, buffer_id, seq, task_id, agent_id, step) "
    "VALUES ({}, {}, {}, 't', 'a', 1)"
)


@pytest.fixture
def sqlite_url(make_database_url):
    return make_database_url("sqlite", schema=True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("key", "seq", "constraint"),
    [
        ("NULL", 1, "key_of_number"),
        ("1", 1, "key_of_number"),
        ("{0} << 40 | 2", 1, "key_of_number"),
        ("({0} + 1) << 40 | 1", 1, "key_of_number"),
        ("{0} << 40", 0, "number_has_40_bits"),
        ("-1", -1, "number_has_40_bits"),
        ("{0} << 40 | 1099511627776", 2**40, "number_has_40_bits"),
    ],
)
def test_a_row_with_another_key_is_refused(sqlite_url, key, seq, constraint):
    with ReplayBuffer(sqlite_url) as buffer:
        number = buffer_id(sqlite_url)
        # The database makes a key where there is none: the next one after the largest.
        run(sqlite_url, INSERT.format(f"{number} << 40 | 7", number, 7))
        with pytest.raises(Exception, match=f"ck_experiences_{constraint}"):
            run(sqlite_url, INSERT.format(key.format(number), number, seq))
        assert len(buffer) == 1


def test_the_largest_number_is_given_out_and_none_after_it(sqlite_url):
    with ReplayBuffer(sqlite_url, max_capacity=3) as buffer:
        last = MOST_NUMBERS - 1
        run(sqlite_url, f"UPDATE buffers SET next_seq = {last - 2}")
        assert buffer.store_batch(make_rows([1, 2])).inserted == 2
        with pytest.raises(StorageError, match="make another buffer"):
            buffer.store_batch(make_rows([3, 4]))
        assert buffer.store(make_row(5)).inserted == 1
        with pytest.raises(StorageError, match="make another buffer"):
            buffer.store(make_row(6))
        assert seqs_of(buffer) == [last - 2, last - 1, last]
        assert sorted(row.exp_meta.step for row in buffer.sample(3)) == [1, 2, 5]
        assert buffer.resize(2) is None
        assert steps_of(buffer) == [2, 5]


def test_a_row_of_plain_sql_gets_no_number_after_the_largest(sqlite_url):
    with ReplayBuffer(sqlite_url) as buffer:
        run(sqlite_url, f"UPDATE buffers SET next_seq = {MOST_NUMBERS}")
        with pytest.raises(Exception, match="number_has_40_bits"):
            run(
                sqlite_url,
                "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step) "
                f"VALUES ({buffer_id(sqlite_url)}, 't', 'a', 1)",
            )
        assert len(buffer) == 0


def set_next_buffer(url, number):
    ReplayBuffer(url, name="first").close()
    if is_sqlite(url):
        run(url, f"UPDATE sqlite_sequence SET seq = {number - 1} WHERE name = 'buffers'")
    else:
        run(url, f"SELECT setval(pg_get_serial_sequence('buffers', 'id'), {number - 1})")


def test_no_buffer_is_made_after_the_last_id(buffer_url):
    set_next_buffer(buffer_url, MOST_BUFFERS)
    with pytest.raises(BufferConfigError, match="make 'more' in another database"):
        ReplayBuffer(buffer_url, name="more")
    assert ReplayBuffer.list(buffer_url) == ["first"]


def test_the_buffer_of_the_last_id_is_like_others(buffer_url):
    set_next_buffer(buffer_url, MOST_BUFFERS - 1)
    with ReplayBuffer(buffer_url, name="last", max_capacity=3) as buffer:
        assert buffer_id(buffer_url, "last") == MOST_BUFFERS - 1
        buffer.store_batch(make_rows(range(5)))
        assert steps_of(buffer) == [2, 3, 4]
        assert sorted(row.exp_meta.step for row in buffer.sample(3)) == [2, 3, 4]
        assert scalar(buffer_url, "SELECT count(*) FROM v_experiences WHERE buffer = 'last'") == 3


def test_a_number_with_more_bits_names_no_row_of_another_buffer(buffer_url):
    with (
        ReplayBuffer(buffer_url, name="one", priorities=True) as one,
        ReplayBuffer(buffer_url, name="two", priorities=True) as two,
    ):
        one.store_batch(make_rows([1]))
        two.store_batch(make_rows([1]))
        of_two = (buffer_id(buffer_url, "two") - buffer_id(buffer_url, "one") << NUMBER_BITS) + 1
        of_one = 1 - (buffer_id(buffer_url, "two") - buffer_id(buffer_url, "one") << NUMBER_BITS)
        assert one.quarantine([of_two]) == 0
        assert two.quarantine([of_one]) == 0
        assert one.annotate([of_two], reward=1.0) == 0
        assert one.update_priorities([of_two], 9.0).updated == 0
        assert scalar(buffer_url, "SELECT count(*) FROM priorities") == 0
        assert len(one.sample(1)) == len(two.sample(1)) == 1


def test_buffers_have_rows_of_the_same_numbers(buffer_url):
    names = ["one", "two", "three"]
    with (
        ReplayBuffer(buffer_url, name="one", max_capacity=2) as one,
        ReplayBuffer(buffer_url, name="two") as two,
        ReplayBuffer(buffer_url, name="three", max_capacity=4) as three,
    ):
        for buffer in (one, two, three):
            buffer.store_batch(make_rows(range(4)))
        for name in names:
            columns, values = numbered(buffer_url, str(buffer_id(buffer_url, name)), "5")
            run(
                buffer_url,
                f"INSERT INTO experiences ({columns}, task_id, agent_id, step) "
                f"VALUES ({values}, 't', 'a', 4)",
            )
        assert [seqs_of(buffer) for buffer in (one, two, three)] == [
            [4, 5],
            [1, 2, 3, 4, 5],
            [2, 3, 4, 5],
        ]
        one.clear()
        assert [len(buffer) for buffer in (one, two, three)] == [0, 5, 4]
