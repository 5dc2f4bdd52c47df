"""The fixtures keep their promises, on which every storage test relies."""

import re
from collections import Counter

import psycopg
import pytest
from sqlalchemy import create_engine, inspect, make_url, text

from sqlbuffer import ReplayBuffer
from tests.support.statements import selects

pytest_plugins = ["pytester"]


def engine_of(url):
    drivername = "sqlite" if url.startswith("sqlite") else "postgresql+psycopg"
    return create_engine(make_url(url).set(drivername=drivername))


@pytest.mark.parametrize("repetition", [1, 2])
def test_each_test_gets_an_empty_database_of_its_own(database_url, repetition):
    engine = engine_of(database_url)
    assert inspect(engine).get_table_names() == []
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE leftover (n integer)"))
    engine.dispose()


@pytest.mark.parametrize("repetition", [1, 2])
def test_each_test_gets_a_database_of_its_own_with_the_schema(schema_url, repetition):
    engine = engine_of(schema_url)
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM buffers")) == 0
        connection.execute(text("CREATE TABLE leftover (n integer)"))
    engine.dispose()


def test_a_test_can_hold_several_databases_at_once(make_database_url):
    urls = [make_database_url(kind) for kind in ("sqlite", "sqlite", "postgresql", "postgresql")]
    assert len(set(urls)) == 4


@pytest.mark.thorough
def test_icu_database_sorts_text_by_an_icu_locale(icu_database_url):
    with psycopg.connect(icu_database_url) as connection:
        provider, locale = connection.execute(
            "SELECT datlocprovider, to_jsonb(d) ->> CASE WHEN to_jsonb(d) ? 'datlocale'"
            " THEN 'datlocale' ELSE 'daticulocale' END"
            " FROM pg_database d WHERE datname = current_database()"
        ).fetchone()
        assert (provider, locale) == ("i", "en-US")
        assert connection.execute("SELECT 'a' < 'B'").fetchone() == (True,)


def test_a_pooled_connection_does_not_keep_a_database_from_being_dropped(postgres_server):
    url = postgres_server.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("SELECT 1")
        postgres_server.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


@pytest.fixture
def skipping(pytester):
    """Return a test run, apart from this one, in which tests and a module are skipped."""
    pytester.makepyfile(
        test_functions="""
        import pytest

        def test_skipped():
            pytest.skip("no time")

        def test_allowed():
            pytest.skip("allowed: no network file system")

        @pytest.mark.xfail(reason="known", strict=True)
        def test_expected_failure():
            assert False
        """,
        test_module="""
        import pytest

        pytest.importorskip("a_module_that_is_missing")
        """,
    )
    return lambda *names: pytester.runpytest("-p", "tests.support.no_skip", *names)


def test_skips_pass_where_they_are_not_forbidden(skipping, monkeypatch):
    monkeypatch.delenv("SQLBUFFER_NO_SKIP", raising=False)
    skipping().assert_outcomes(skipped=3, xfailed=1)


@pytest.mark.slow
def test_only_allowed_skips_pass_where_skips_are_forbidden(skipping, monkeypatch):
    monkeypatch.setenv("SQLBUFFER_NO_SKIP", "1")
    skipping("test_functions.py").assert_outcomes(failed=1, skipped=1, xfailed=1)
    skipping("test_module.py").assert_outcomes(errors=1)


def test_selects_are_noted_whatever_a_transaction_begins_with(buffer_url):
    with ReplayBuffer(buffer_url) as buffer, selects(buffer) as noted:
        assert buffer.explain()
        assert buffer.sample(1) == []
    assert any("EXPLAIN" not in statement for statement in noted)


CASES = """
import pytest

@pytest.mark.parametrize("z", [1, True, 1.0, 0.0, -0.0])
def test_single(z): pass

@pytest.mark.parametrize("x, y", [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("kind", ["a", "b"])
def test_product(x, y, kind): pass

@pytest.mark.each_value
@pytest.mark.parametrize("x", range(3))
@pytest.mark.parametrize("kind", ["a", "b"])
def test_each_value(x, kind): pass

@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["a", "b"])
def test_thorough(kind): pass

@pytest.mark.parametrize("x", range(4))
@pytest.mark.parametrize("kind", ["a", "b"])
def test_large(x, kind): pass

@pytest.mark.combinations
@pytest.mark.parametrize("x", range(4))
@pytest.mark.parametrize("kind", ["a", "b"])
def test_combinations(x, kind): pass

@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("x", range(3))
def test_databases(kind, x): pass

@pytest.mark.thorough
@pytest.mark.combinations
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_both_databases(kind): pass
"""


def test_the_parts_have_no_case_twice_and_the_first_has_every_value(pytester):
    pytester.makepyfile(test_cases=CASES)
    markers = "markers=each_value: one\nthorough: two\ncombinations: three"

    def listed(*options):
        arguments = ("-p", "tests.support.parts", "-o", markers, "--collect-only", "-q")
        lines = pytester.runpytest(*arguments, *options).outlines
        return [line.partition("::")[2] for line in lines if "::" in line]

    every, quick, rest = listed(), listed("--part", "test"), listed("--part", "rest")
    # Of combinations that are not asked for, those of each value are in a part, the others in none.
    left_out = set(every) - {*quick, *rest}
    assert len(quick) + len(rest) + len(left_out) == len(every)
    assert [case.partition("[")[0] for case in left_out] == ["test_product"] * 3
    counts = Counter(case.partition("[")[0] for case in every)
    assert counts == {
        "test_single": 5, "test_product": 6, "test_each_value": 3, "test_thorough": 2,
        "test_large": 4, "test_combinations": 8, "test_databases": 3, "test_both_databases": 2,
    }  # fmt: skip
    assert [case for case in quick if "test_thorough" in case] == []
    assert len([case for case in quick if "test_single" in case]) == 5
    product = [case for case in quick if "test_product" in case]
    assert len(product) == 3
    assert {text for case in product for text in re.findall(r"1-1|1-2|2-1", case)} == {
        "1-1", "1-2", "2-1",
    }  # fmt: skip
    assert {text for case in product for text in re.findall(r"[ab]", case.partition("[")[2])} == {
        "a", "b",
    }  # fmt: skip
