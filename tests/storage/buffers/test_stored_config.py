"""The stored configuration: one document, and the columns that SQL reads."""

import json

import pytest

from sqlbuffer import BufferConfig, Connection, RateLimiter, RatioWindow, ReplayBuffer
from sqlbuffer.errors import BufferConfigError, BufferNotFoundError, FieldError, SchemaTooNewError
from sqlbuffer.storage.buffers.catalog import HOT_COLUMNS, disagreements
from tests.support.processes import run_at_once
from tests.support.sql import connected, run, scalar
from tests.support.stepped_rows import make_rows

SETTINGS = [
    {},
    {
        "max_capacity": 50,
        "priorities": True,
        "alpha": 0.4,
        "max_use": 3,
        "max_staleness": 0,
        "min_size": 5,
        "track_samples": True,
        "keep_samples_s": 60,
        "fields": {"obs": ("float32", (3,), [0, 1, float("nan")]), "kind": {"dtype": "U4"}},
        "meta_fields": {"level": "int32"},
        "max_row_bytes": 10_000,
        "current_session_only": True,
        "keep_expired": True,
        "rate_limiter": RateLimiter(2.0, min_size=5),
    },
    {"max_episodes": 4, "keep_episodes": 9, "open_timeout_s": 2.5},
    {"leases": True, "max_use": 2, "rate_limiter": RatioWindow(max_ratio=2.0)},
    {"evict_by": "task", "max_capacity": 9},
]


def document(url, name="default"):
    found = scalar(url, "SELECT config FROM buffers WHERE name = :name", name=name)
    return json.loads(found) if isinstance(found, str) else found


def check_columns(url):
    """Check that the columns say what the configurations say."""
    with connected(url) as connection:
        assert {name: lines for name, lines in disagreements(connection).items() if lines} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings), "none"))
def test_the_columns_agree_with_the_document_whatever_changes(buffer_url, settings):
    with ReplayBuffer(buffer_url, **settings) as buffer:
        check_columns(buffer_url)
        expected = BufferConfig.of(**settings)
        assert buffer.config == expected
        for change in (10, 20, None):
            buffer.resize(change)
            expected = expected.replace({"max_capacity": change})
            assert buffer.config == expected
            check_columns(buffer_url)
        if "max_episodes" in settings:
            buffer.resize(max_episodes=2)
            assert buffer.config.retention.max_episodes == 2
            check_columns(buffer_url)
            expected = expected.replace({"max_episodes": 2})
        for limiter in (RateLimiter(8.0, 10), RatioWindow(min_ratio=0.1), None):
            buffer.set_rate_limiter(limiter)
            expected = expected.replace({"rate_limiter": limiter})
            assert buffer.config == expected
            check_columns(buffer_url)


def test_the_document_has_all_settings(buffer_url):
    ReplayBuffer(buffer_url, max_capacity=5).close()
    assert document(buffer_url) == BufferConfig.of(max_capacity=5).model_dump(mode="json")


def test_each_hot_column_is_one_of_buffers(buffer_url):
    with connected(buffer_url) as connection:
        columns = connection.exec_driver_sql("SELECT * FROM buffers").keys()
    assert {*HOT_COLUMNS, "config", "flow"} <= set(columns)


def test_a_buffer_made_by_plain_sql_has_the_defaults(buffer_url):
    run(buffer_url, "INSERT INTO buffers (name) VALUES ('plain')")
    check_columns(buffer_url)
    with ReplayBuffer(buffer_url, name="plain", create=False) as buffer:
        assert buffer.config == BufferConfig()


def test_changing_a_limit_keeps_the_counts_of_the_rate_limiter(buffer_url):
    with ReplayBuffer(buffer_url, max_capacity=50) as buffer:
        buffer.store_batch(make_rows(range(20)))
        buffer.set_rate_limiter(RateLimiter(2.0))
        buffer.store_batch(make_rows(range(20, 23)))
        buffer.resize(40)
        assert buffer.flow().inserted == 3
        check_columns(buffer_url)


def change(url, number):
    with ReplayBuffer(url, create=False) as buffer:
        for i in range(10):
            if number == 0:
                buffer.resize(100 + i)
            else:
                buffer.set_rate_limiter(RateLimiter(8.0, 10 + i))


@pytest.mark.thorough
def test_changes_by_several_processes_lose_none(buffer_url):
    ReplayBuffer(buffer_url, max_use=3).close()
    run_at_once([(change, buffer_url, number) for number in (0, 1)])
    check_columns(buffer_url)
    with ReplayBuffer(buffer_url) as buffer:
        assert buffer.config == BufferConfig.of(
            max_use=3, max_capacity=109, rate_limiter=RateLimiter(8.0, 19)
        )


def test_the_configuration_is_that_of_now(buffer_url):
    with ReplayBuffer(buffer_url, max_capacity=9) as one, ReplayBuffer(buffer_url) as other:
        one.resize(7)
        assert other.config.retention.max_capacity == 7
    ReplayBuffer.drop(buffer_url, "default")
    with pytest.raises(BufferNotFoundError):
        other.config  # noqa: B018


@pytest.mark.thorough
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings), "none"))
def test_a_buffer_is_opened_with_its_own_configuration(buffer_url, settings):
    with ReplayBuffer(buffer_url, config=BufferConfig.of(**settings)) as buffer:
        config = buffer.config
    for again in (config, BufferConfig.model_validate_json(config.model_dump_json())):
        with ReplayBuffer(buffer_url, config=again) as buffer:
            assert buffer.config == config
    with ReplayBuffer(buffer_url, "copy", config=config) as buffer:
        assert buffer.config == config


def test_a_model_may_say_that_a_setting_is_unlimited(buffer_url):
    ReplayBuffer(buffer_url, max_capacity=5).close()
    with pytest.raises(BufferConfigError, match="opened with max_capacity=unlimited"):
        ReplayBuffer(buffer_url, config=BufferConfig().replace({"max_capacity": None}))


def test_settings_override_the_model(buffer_url):
    config = BufferConfig.of(max_capacity=5, max_use=2)
    with ReplayBuffer(buffer_url, config=config, max_capacity=7) as buffer:
        assert buffer.config == BufferConfig.of(max_capacity=7, max_use=2)
    with pytest.raises(BufferConfigError, match="max_capacity=7, and was opened with max_cap"):
        ReplayBuffer(buffer_url, config=config)


def test_every_setting_that_differs_is_listed(buffer_url):
    ReplayBuffer(buffer_url, max_capacity=5, fields={"obs": "float32"}).close()
    with pytest.raises(BufferConfigError) as info:
        ReplayBuffer(buffer_url, max_capacity=6, max_use=2, fields={"obs": "int8"}, leases=False)
    for part in (
        "max_capacity: stored 5, given 6",
        "max_use: stored unlimited, given 2",
        "'obs' is stored as float32, and was given as int8",
        "buffer.resize(n)",
    ):
        assert part in str(info.value)
    assert "leases" not in str(info.value)
    with pytest.raises(FieldError, match="'obs' is stored as float32"):
        ReplayBuffer(buffer_url, max_capacity=5, fields={"obs": "int8"})


def test_an_opener_draws_with_its_own_alpha_and_compares_that_of_a_model(buffer_url):
    ReplayBuffer(buffer_url, priorities=True, alpha=0.4).close()
    with ReplayBuffer(buffer_url, alpha=0.7) as buffer:
        assert buffer.config.priorities.alpha == buffer.alpha == 0.4
        assert buffer.connection == Connection(alpha=0.7)
    with ReplayBuffer(buffer_url, connection=Connection(alpha=0.7)) as buffer:
        assert buffer.connection.alpha == 0.7
    with pytest.raises(BufferConfigError, match=r"alpha=0\.4, and was opened with alpha=0\.7"):
        ReplayBuffer(buffer_url, config=BufferConfig.of(priorities=True, alpha=0.7))


@pytest.mark.parametrize("settings", [{"alpha": 0.5}, {"connection": Connection(alpha=0.5)}])
def test_alpha_without_priorities_is_refused(buffer_url, settings):
    with pytest.raises(BufferConfigError, match="alpha goes with priorities=True"):
        ReplayBuffer(buffer_url, **settings)
    assert ReplayBuffer.list(buffer_url) == []
    ReplayBuffer(buffer_url).close()
    with pytest.raises(BufferConfigError, match="has no priorities"):
        ReplayBuffer(buffer_url, **settings)


def test_the_view_shows_settings_as_columns(buffer_url):
    ReplayBuffer(buffer_url, "plain").close()
    ReplayBuffer(buffer_url, "other", max_use=3, max_staleness=0, min_size=5).close()
    statement = "SELECT buffer, max_use, max_staleness, min_size FROM v_buffers ORDER BY buffer"
    assert run(buffer_url, statement) == [("other", 3, 0, 5), ("plain", None, None, 0)]


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ('{"retention": {"warmth": 5}}', "retention has no 'warmth'"),
        ('{"weather": {"sun": true}}', "BufferConfig has no 'weather'"),
        ('{"retention": {"evict_by": "mood"}}', "evict_by is one of row, task, episode"),
    ],
)
def test_settings_of_a_later_release_are_an_error_that_says_so(buffer_url, stored, message):
    buffer = ReplayBuffer(buffer_url)
    statement = "UPDATE buffers SET config = CAST(:stored AS jsonb)"
    run(buffer_url, statement if "postgresql" in buffer_url else UPDATE_TEXT, stored=stored)
    for call in (lambda: ReplayBuffer(buffer_url), lambda: buffer.config, lambda: buffer.resize(5)):
        with pytest.raises(SchemaTooNewError, match=message) as info:
            call()
        for part in ("buffer 'default'", "`git pull && pip install .`"):
            assert part in str(info.value)
    buffer.close()
    assert ReplayBuffer.list(buffer_url) == ["default"]
    ReplayBuffer.drop(buffer_url, "default")


UPDATE_TEXT = "UPDATE buffers SET config = :stored"
