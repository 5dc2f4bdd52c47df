"""The configuration of a buffer: settings, checks, JSON. No database."""

import copy
import json
import pickle
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer import BufferConfig, Connection, RateLimiter, RatioWindow
from sqlbuffer.compat.minestudio import Config, DatabaseConfig
from sqlbuffer.compat.minestudio.errors import FragmentError
from sqlbuffer.config import PLACES, BufferSettings, RetentionConfig, check_same
from sqlbuffer.errors import BufferConfigError, FieldError
from sqlbuffer.spaces import Spaces

# What callers declare is parsed.
DECLARED = {
    "fields": Mapping[str, Any],
    "observation_fields": Sequence[str],
    "meta_fields": Mapping[str, Any],
    "spaces": Spaces | Mapping[str, Any],
    "max_age": str | timedelta | float,
    "max_bytes": str | int,
}


def model_types() -> dict[str, Any]:
    """Return the type of each setting in the model, by its name as a keyword argument."""
    groups = get_type_hints(BufferConfig)
    return {
        argument: get_type_hints(groups[group])[name] for argument, (group, name) in PLACES.items()
    }


def test_the_keyword_arguments_have_the_settings_and_types_of_the_model():
    expected = {name: DECLARED.get(name, type_) | None for name, type_ in model_types().items()}
    assert get_type_hints(BufferSettings) == expected


def test_each_setting_has_a_name_of_its_own_and_is_described_in_its_group():
    n_settings = sum(len(type(group).model_fields) for _, group in BufferConfig())
    assert len(PLACES) == n_settings == 26
    for group_name, group in BufferConfig():
        assert f"    {group_name}: " in BufferConfig.__doc__
        for name in type(group).model_fields:
            assert f"    {name}: " in type(group).__doc__


seconds = st.floats(1e-3, 1e6)
names = st.sampled_from(["obs", "action", "tokens", "camera"])
declarations = st.one_of(
    st.sampled_from(["float32", "int64", "bool", "U8", "uint8"]),
    st.tuples(st.sampled_from(["float32", "complex64"]), st.tuples(st.integers(1, 4))),
    st.tuples(st.just("float64"), st.just((-1,)), st.lists(st.floats(width=64), max_size=3)),
    st.tuples(st.just("S4"), st.just(()), st.binary(max_size=4)),
    st.just({"dtype": "int64", "column": True, "default": 3}),
)
limiters = st.one_of(
    st.builds(RateLimiter, st.floats(0.1, 100), st.integers(1, 1_000)),
    st.builds(RateLimiter, st.just(1.0), st.just(5), st.just((-10.0, 40.0))),
    st.builds(RatioWindow, max_ratio=st.floats(0.1, 5), window_s=seconds),
    st.builds(RatioWindow, min_ratio=st.floats(0.1, 5)),
)
plain = {
    "max_capacity": st.integers(1_000, 2**62),
    "keep_expired": st.booleans(),
    "keep_episodes": st.integers(1, 10**9),
    "open_timeout_s": seconds,
    "fields": st.dictionaries(names, declarations, max_size=3),
    "meta_fields": st.dictionaries(st.sampled_from(["level", "seed"]), st.just("int32")),
    "compression": st.just("zstd"),
    "max_row_bytes": st.integers(1, 2**40),
    "max_use": st.integers(1, 2**31 - 1),
    "max_staleness": st.integers(0, 2**62),
    "min_size": st.integers(0, 1_000),
    "current_session_only": st.booleans(),
    "track_samples": st.booleans(),
    "keep_samples_s": seconds,
    "rate_limiter": limiters,
}
in_groups = st.one_of(
    st.fixed_dictionaries({}, optional={"max_episodes": st.integers(1, 10**9)}),
    st.fixed_dictionaries({"evict_by": st.sampled_from(["row", "task", "episode"])}),
    st.just({"leases": True}),
)
with_priorities = st.one_of(
    st.just({}), st.fixed_dictionaries({"priorities": st.just(True), "alpha": st.floats(0, 1)})
)
some_settings = st.tuples(
    st.fixed_dictionaries({}, optional=plain), in_groups, with_priorities
).map(lambda parts: {**parts[0], **parts[1], **parts[2]})


@pytest.mark.thorough
@given(some_settings)
def test_json_brings_every_configuration_back(settings):
    config = BufferConfig.of(**settings)
    assert BufferConfig.model_validate_json(config.model_dump_json()) == config
    assert BufferConfig.model_validate(json.loads(json.dumps(config.model_dump(mode="json")))) == (
        config
    )
    assert pickle.loads(pickle.dumps(config)) == config
    assert set(config.given()) == set(settings)
    assert BufferConfig.of().replace(config.settings()) == config


def test_omitted_settings_have_defaults_and_none_omits_one():
    assert BufferConfig.of() == BufferConfig() == BufferConfig.of(max_capacity=None, evict_by=None)
    config = BufferConfig.of(max_capacity=5, leases=None)
    assert config.retention.max_capacity == 5
    assert (config.retention.evict_by, config.priorities.alpha) == ("row", 0.6)
    assert config.given() == {"max_capacity": 5}


def test_a_limit_of_episodes_evicts_by_episode():
    config = BufferConfig.of(max_episodes=7)
    assert config.retention.evict_by == "episode"
    assert "evict_by" not in config.given()
    assert BufferConfig(retention=RetentionConfig(max_episodes=7)) == config


def test_replace_takes_none_as_a_value_and_checks():
    config = BufferConfig.of(max_capacity=5, min_size=3)
    assert config.replace({"max_capacity": None}).retention.max_capacity is None
    assert config.sampling.min_size == config.replace({"max_use": 1}).sampling.min_size == 3
    with pytest.raises(BufferConfigError, match="never holds the 3 rows"):
        config.replace({"max_capacity": 2})


def test_the_repr_shows_what_is_not_default():
    assert repr(BufferConfig()) == str(BufferConfig()) == "BufferConfig.of()"
    config = BufferConfig.of(max_capacity=9, fields={"obs": ("float32", (3,)), "a": "int8"})
    assert repr(config) == (
        "BufferConfig.of(max_capacity=9, fields={'obs': float32(3,), 'a': int8}, "
        "observation_fields=('obs',))"
    )
    assert repr(config.retention) == "RetentionConfig(max_capacity=9)"


def test_numbers_of_numpy_become_those_of_python():
    config = BufferConfig.of(
        max_capacity=np.int32(5), open_timeout_s=np.float32(2), leases=np.True_
    )
    assert type(config.retention.max_capacity) is int
    assert type(config.episodes.open_timeout_s) is float
    assert config.leases.enabled is True


def test_a_configuration_is_frozen():
    config = BufferConfig.of(max_capacity=5)
    with pytest.raises(ValueError, match="frozen"):
        config.retention.max_capacity = 6
    with pytest.raises(ValueError, match="frozen"):
        config.retention = RetentionConfig()
    assert copy.deepcopy(config) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_capacity": 0},
            r"max_capacity is an integer from 1 on, or None \(unlimited\), got 0",
        ),
        ({"max_capacity": True}, "max_capacity is an integer from 1 on"),
        ({"max_capacity": 2**63}, "max_capacity is an integer of 64 bits"),
        ({"max_episodes": 1.5}, "max_episodes is an integer from 1 on"),
        ({"keep_episodes": -1}, "keep_episodes is an integer from 1 on"),
        ({"max_row_bytes": "1"}, "max_row_bytes is an integer from 1 on"),
        ({"max_use": 2**31}, "max_use is an integer from 1 to 2147483647, .* got 2147483648"),
        ({"max_staleness": -1}, "max_staleness is an integer from 0 on, or None .*, got -1"),
        ({"min_size": 0.5}, r"min_size is an integer from 0 on, got 0\.5"),
        ({"keep_samples_s": 0}, "keep_samples_s is a number of seconds above 0 to 1e\\+08, got 0"),
        ({"open_timeout_s": float("nan")}, "open_timeout_s is a number of seconds above 0"),
        ({"priorities": "yes"}, "priorities is True or False, got 'yes'"),
        ({"leases": 1}, "leases is True or False, got 1"),
        ({"track_samples": []}, "track_samples is True or False"),
        ({"evict_by": "step"}, "evict_by is one of row, task, episode, got 'step'"),
        ({"compression": "lz4"}, "compression is one of zstd, or omitted, got 'lz4'"),
        ({"priorities": True, "alpha": 2}, "alpha is a number from 0 to 1, got 2"),
        ({"priorities": False, "alpha": 0.5}, "alpha goes with priorities=True"),
        ({"rate_limiter": 8}, "rate_limiter is a RateLimiter, a RatioWindow or None, got 8"),
        ({"rate_limiter": {"type": "Reverb"}}, "rate_limiter is a RateLimiter"),
        ({"max_capacity": 9, "min_size": 10}, "max_capacity=9 never holds the 10 rows"),
        ({"max_episodes": 3, "evict_by": "task"}, "evicts by episode; leave out evict_by='task'"),
        ({"leases": True, "max_episodes": 3}, "a buffer with leases=True evicts by row"),
    ],
)
def test_a_wrong_value_is_refused_by_name(settings, message):
    with pytest.raises(BufferConfigError, match=message):
        BufferConfig.of(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fields": {"obs": "nothing"}}, "field 'obs': 'nothing' is not a numpy dtype"),
        ({"fields": [1]}, "fields is a dict"),
        ({"fields": {"a": "f4"}, "observation_fields": ["b"]}, "'b' is not declared"),
        ({"fields": {"a": "f4"}, "meta_fields": {"a": "f4"}}, "is declared in fields and in"),
        ({"meta_fields": {"casting": "f4"}}, "the name is reserved"),
    ],
)
def test_a_malformed_field_is_refused_by_name(settings, message):
    with pytest.raises(FieldError, match=message):
        BufferConfig.of(**settings)


def test_an_unknown_setting_is_refused_as_python_refuses_it():
    with pytest.raises(TypeError, match="no setting 'max_capcity'; did you mean max_capacity"):
        BufferConfig.of(max_capcity=5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"max_capacity": 5}', "no 'max_capacity'; put it into the group 'retention'"),
        ('{"retention": {"capacity": 5}}', "no 'capacity'; it has max_capacity, max_episodes"),
        ('{"retention": 5}', "retention: expected a"),
        (
            '{"episodes": {"keep_episodes": null}}',
            "keep_episodes is an integer from 1 on, got None",
        ),
        ('{"retention": ', "Invalid JSON"),
        ("[]", "BufferConfig: expected a dict"),
        ('{"flow": {"rate_limiter": {"type": "RateLimiter", "x": 1}}}', "rate_limiter is a .* 'x'"),
    ],
)
def test_json_that_is_no_configuration_is_refused(text, message):
    with pytest.raises(BufferConfigError, match=message):
        BufferConfig.model_validate_json(text)


def test_fields_may_be_written_by_hand():
    written = {"obs": {"dtype": "float32", "shape": [4]}, "gain": {"dtype": "i4", "default": 2}}
    config = BufferConfig.model_validate({"fields": {"specs": written}})
    assert config == BufferConfig.of(fields={"obs": ("float32", (4,)), "gain": ("int32", (), 2)})
    listed = [{"name": name, **spec} for name, spec in written.items()]
    assert BufferConfig.model_validate({"fields": {"specs": listed}}) == config


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"dtype": "float32", "default": [[], "00"]}, "field 'x': the default '00' is damaged"),
        ({"dtype": "float32", "default": [[], "no hex"]}, "field 'x': the default"),
        ({"shape": [3]}, "field 'x': a declaration has dtype"),
        ({"dtype": "float32", "shape": [0]}, "field 'x': a shape is"),
        ({"dtype": "zz"}, "field 'x': 'zz' is not a numpy dtype"),
    ],
)
def test_damaged_fields_are_refused_by_name(spec, message):
    with pytest.raises(FieldError, match=message):
        BufferConfig.model_validate({"fields": {"specs": [{"name": "x", **spec}]}})


# Models of settings are frozen, and their errors are the library's.


@pytest.mark.parametrize(("model", "name"), [(BufferConfig(), "fields"), (Connection(), "wait_s")])
def test_a_frozen_model_refuses_changes_by_an_error_of_the_library(model, name):
    with pytest.raises(BufferConfigError, match=f"{name}: Instance is frozen"):
        setattr(model, name, 3)
    with pytest.raises(BufferConfigError, match=f"{name}: Instance is frozen"):
        delattr(model, name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BufferConfig(retention=5), "retention: expected a dict, got 5"),
        (
            lambda: BufferConfig(retention={"capacity": 5}),
            "retention has no 'capacity'; it has max_capacity",
        ),
        (lambda: BufferConfig(max_capacity=5), "put it into the group 'retention'"),
        (lambda: BufferConfig.model_validate(5), "BufferConfig: expected a"),
        (lambda: BufferConfig.model_validate_json("{"), "BufferConfig: Invalid JSON"),
        (
            lambda: BufferConfig.model_validate_strings({"retention": {"max_capacity": "x"}}),
            "max_capacity is an integer from 1 on",
        ),
        (lambda: Connection(wait_s="x"), "wait_s is a number of seconds"),
        (lambda: Connection.model_validate({"waits": 1}), "Connection has no 'waits'; it has"),
    ],
)
def test_wrong_settings_are_errors_of_the_library(make, message):
    with pytest.raises(BufferConfigError) as caught:
        make()
    assert message in str(caught.value)
    assert "pydantic" not in str(caught.value)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), str(copied)) == (BufferConfigError, str(caught.value))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DatabaseConfig(path=5), "path: input should be a valid string, got 5; a folder"),
        (
            lambda: Config(max_chunks=0, max_staleness=1, max_reuse=1, fragments_per_chunk=1),
            "got 0",
        ),
        (lambda: Config.model_validate_json("{}"), "max_chunks: missing; how many chunks"),
    ],
)
def test_wrong_settings_of_minestudio_are_errors_of_its_adapter(make, message):
    with pytest.raises(FragmentError, match=message) as caught:
        make()
    assert "pydantic" not in str(caught.value)


# What is said of a buffer that is opened with other settings than the stored ones. No database.


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
