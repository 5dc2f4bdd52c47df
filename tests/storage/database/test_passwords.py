"""No password is in what the library says."""

import logging

import pytest
from sqlalchemy import make_url
from sqlalchemy.engine import URL

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageUnreachableError, URLError
from sqlbuffer.storage.database.urls import shown_url
from tests.support.malformed_urls import MALFORMED_URLS, NO_PASSWORD, PASSWORDS, SECRET


def texts_of(error):
    """Yield the texts of an error, of its causes, and of what it was raised in the handling of."""
    while error is not None:
        yield from (str(error), repr(error))
        error = error.__cause__ or error.__context__


def test_no_malformed_url_is_echoed(caplog):
    caplog.set_level(logging.DEBUG)
    assert len(set(MALFORMED_URLS)) == 200
    for url in MALFORMED_URLS:
        for call in (ReplayBuffer, ReplayBuffer.list):
            with pytest.raises(URLError) as info:
                call(url)
            assert not [text for text in texts_of(info.value) if SECRET in text], url
    assert SECRET not in caplog.text


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_of_any_characters_stays_hidden_when_the_server_does_not_answer(
    password, caplog
):
    caplog.set_level(logging.DEBUG)
    url = URL.create("postgresql", "me", password, "127.0.0.1", 1, "db")
    for given in (url, url.render_as_string(hide_password=False)):
        with pytest.raises(StorageUnreachableError, match="check that the server runs") as info:
            ReplayBuffer(given, retry_s=0)
        assert not [text for text in texts_of(info.value) if SECRET in text]
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "option",
    ["password", "passfile", "sslpassword", "passwd", "PWD", "auth_token", "client_secret", "key"],
)
def test_options_that_hold_secrets_are_not_shown(option):
    url = make_url(f"postgresql://me@host/db?sslmode=require&sslkey=me.key&{option}={SECRET}")
    assert shown_url(url) == "postgresql://me@host/db?sslkey=me.key&sslmode=require"


def test_a_url_that_ends_behind_an_empty_password_is_not_echoed(caplog):
    for url in (NO_PASSWORD, f"{NO_PASSWORD}/", f"{NO_PASSWORD}?sslmode=require"):
        with pytest.raises(URLError, match=r"empty password .* leave out the colon") as info:
            ReplayBuffer(url, retry_s=0)
        assert not [text for text in texts_of(info.value) if SECRET in text]
    assert SECRET not in caplog.text


def test_an_at_sign_in_a_password_is_named_with_its_escape():
    with pytest.raises(URLError, match=r"@ in its password .* write it as %40"):
        ReplayBuffer("postgresql://me:p@ss@host/db")


def test_a_connection_string_of_libpq_is_named():
    with pytest.raises(URLError, match="not connection strings of libpq"):
        ReplayBuffer("host=localhost dbname=replay")


@pytest.mark.parametrize(
    "url", ["postgresql://me:s3cret\udcff@host/db", "sqlite:///s3cret\udcff.db"]
)
def test_a_url_that_is_no_text_is_refused_without_an_echo(monkeypatch, url):
    monkeypatch.setenv("SQLBUFFER_URL", url)
    for call in (ReplayBuffer, ReplayBuffer.list):
        with pytest.raises(URLError, match="has bytes that are not UTF-8") as info:
            call()
        assert not [text for text in texts_of(info.value) if SECRET in text]
