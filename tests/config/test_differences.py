"""What is said of a buffer that is opened with other settings than the stored ones. No database."""

import pytest

from sqlbuffer import BufferConfig, RateLimiter
from sqlbuffer.config import check_same
from sqlbuffer.errors import BufferConfigError, FieldError

STORED = BufferConfig.of(
    max_capacity=1_000, priorities=True, alpha=0.5, fields={"obs": ("float32", (4,))}
)


def error_of(given, ignored=()):
    with pytest.raises((BufferConfigError, FieldError)) as info:
        check_same("b", given, STORED, ignored)
    return info.value


def test_only_settings_that_are_given_are_compared():
    check_same("b", BufferConfig(), STORED)
    check_same("b", BufferConfig.of(max_capacity=1_000), STORED)
    check_same("b", STORED, STORED)
    check_same("b", BufferConfig.model_validate_json(STORED.model_dump_json()), STORED)
    check_same("b", BufferConfig.of(alpha=0.1), STORED, ["alpha"])


def test_one_difference_is_named_with_both_values_and_the_remedy():
    assert str(error_of(BufferConfig.of(max_capacity=5))) == (
        "buffer 'b' is stored with max_capacity=1000, and was opened with max_capacity=5; "
        "leave the argument out, or use buffer.resize(n)"
    )
    error = str(error_of(BufferConfig.of(rate_limiter=RateLimiter(2))))
    assert "stored with rate_limiter=none, and was opened with rate_limiter=RateLimiter(" in error
    assert error.endswith("or use buffer.set_rate_limiter(...)")
    assert "use a buffer of another name" in str(error_of(BufferConfig.of(max_use=1)))


def test_unlimited_may_be_given_in_a_model():
    wanted = BufferConfig.model_validate({"retention": {"max_capacity": None}})
    assert "opened with max_capacity=unlimited" in str(error_of(wanted))


def test_several_differences_are_listed():
    wanted = BufferConfig.of(max_capacity=5, alpha=0.1, compression="zstd", min_size=0)
    error = error_of(wanted)
    assert type(error) is BufferConfigError
    assert str(error).splitlines() == [
        "buffer 'b' is stored with other settings than it was opened with:",
        "  max_capacity: stored 1000, given 5;",
        "  compression: stored none, given 'zstd';",
        "  alpha: stored 0.5, given 0.1;",
        "leave these out, or use buffer.resize(n), a buffer of another name",
    ]


def test_fields_alone_are_an_error_of_fields_and_listed():
    error = error_of(BufferConfig.of(fields={"obs": "float32", "a": "int8"}))
    assert type(error) is FieldError
    assert "'obs' is stored as float32(4,), and was given as float32" in str(error)
    assert "'a' is stored as nothing, and was given as int8" in str(error)


def test_fields_are_listed_with_the_other_settings():
    error = error_of(BufferConfig.of(max_capacity=5, fields={"obs": "float32"}))
    assert type(error) is BufferConfigError
    assert "max_capacity: stored 1000, given 5" in str(error)
    assert "'obs' is stored as float32(4,), and was given as float32" in str(error)
