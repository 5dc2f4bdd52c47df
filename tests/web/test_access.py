import asyncio
import re

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from sqlbuffer import ReplayBuffer
from sqlbuffer.web import app
from tests.support.web_client import WebClient


@pytest.fixture
def url(make_database_url):
    url = make_database_url("sqlite", schema=True)
    ReplayBuffer(url, name="train", max_capacity=5).close()
    return url


@pytest.fixture
def guarded(url):
    return WebClient(app(url, token="secret", hosts={"localhost", "127.0.0.1"}))


def test_the_token_lets_a_browser_in_and_leaves_the_address(guarded):
    refused = guarded.get("/")
    assert refused.status_code == 403
    assert "train" not in refused.text
    assert "the token that `sqlbuffer ui` printed" in refused.text
    response = guarded.get("/?token=secret&buffer=a%2Fb%26c")
    assert response.status_code == 303
    assert response.headers["location"] == "/?buffer=a%2Fb%26c"
    cookie = response.headers["set-cookie"]
    assert cookie.startswith("sqlbuffer_8765=")
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
    assert guarded.get("/").status_code == 200
    assert "train" in guarded.get("/").text


@pytest.mark.parametrize("given", ["", "secre", "secrets", "SECRET", "%00", "%ED%A0%80", "ä"])
def test_a_wrong_token_or_cookie_is_refused(guarded, given):
    response = guarded.get(f"/?token={given}")
    assert response.status_code == 403
    assert "set-cookie" not in response.headers
    headers = {"Cookie": f"sqlbuffer_8765={given}"}
    if given.isascii():
        assert guarded.get("/", headers=headers).status_code == 403
    # That of a page at another port.
    assert guarded.get("/", headers={"Cookie": "sqlbuffer_8766=secret"}).status_code == 403


def test_a_redirect_never_leaves_the_page(guarded):
    location = guarded.get("//evil.example/?token=secret").headers["location"]
    assert location.startswith("/")
    assert not location.startswith("//")


def test_the_page_that_refuses_links_to_the_same_place_without_the_token(guarded, url):
    text = guarded.get("/sql?token=wrong&q=%3Cb%3E").text
    assert 'href="/sql?q=%3Cb%3E&amp;unrun=1"' in text
    assert "wrong" not in text
    assert str(url).rpartition("/")[2] not in text


@pytest.mark.thorough
@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8765", "localhost.evil.example", "", "[::1].evil",
        "[::1].evil:8765", "evil[::1]", "[::1", "[::1]:80:80", "[localhost].evil", "evil@localhost",
        "evil@[::1]", "127.0.0.1%evil", "127.0.0.1.evil", "localhost/evil", "localhost:80@evil",
        "[localhost]", "[evil]",
    ],
)  # fmt: skip
def test_a_host_of_another_name_is_refused(guarded, host):
    response = guarded.get("/?token=secret", headers={"Host": host})
    assert response.status_code == 421
    assert "not served under the name" in response.text
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8765", "[::1]:8765", "[::1]"]
)
def test_a_port_that_is_forwarded_is_let_in(guarded, host):
    assert guarded.get("/?token=secret", headers={"Host": host}).status_code == 303


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:9999"},
    {"Origin": "http://[broken"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_what_another_site_asks_for_is_refused(guarded, url, headers):
    guarded.get("/?token=secret")
    response = guarded.get("/", headers=headers)
    assert response.status_code == 403
    assert "train" not in response.text
    # Behind somebody's own login, too.
    assert WebClient(app(url)).get("/", headers=headers).status_code == 403


def test_a_request_of_the_page_itself_and_a_link_from_elsewhere_pass(guarded):
    guarded.get("/?token=secret")
    for headers in (
        {"Origin": "http://localhost:8765", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document",
        },
    ):
        assert guarded.get("/", headers=headers).status_code == 200, headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused(guarded, method):
    guarded.get("/?token=secret")
    response = guarded.request(method, "/sql?q=SELECT+1")
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/nothing", "/static/app.js", "/static/none.js", "/live/.."])
def test_every_answer_has_the_headers_that_protect(guarded, path):
    for client in (guarded, WebClient(guarded.app)):
        headers = client.get(path).headers
        policy = dict(
            part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] in ("no-store", "no-cache")


def test_files_are_not_read_from_outside_of_their_folder(guarded):
    for path in ("/static/../access.py", "/static/..%2faccess.py", "/static/%2e%2e/__init__.py"):
        assert guarded.get(path).status_code in (403, 404)


def test_without_a_token_the_page_is_there_for_those_who_mount_it(url):
    yours = Starlette(routes=[Mount("/team/replay", app(url))])
    client = WebClient(yours)
    text = client.get("/team/replay/").text
    links = re.findall(r'(?:href|src|data-live)="([^"#][^"]*)"', text)
    assert len(links) > 6
    assert [link for link in links if not link.startswith(("/team/replay/", "data:"))] == []
    for link in links:
        if "live" not in link and not link.startswith("data:"):
            assert client.get(link.replace("&amp;", "&")).status_code == 200, link
    assert client.get("/team/replay/none").status_code == 404


def test_a_mounted_page_with_a_token_keeps_its_cookie_to_itself(url):
    client = WebClient(Starlette(routes=[Mount("/replay", app(url, token="secret"))]))
    response = client.get("/replay/?token=secret")
    assert response.headers["location"] == "/replay/"
    assert "Path=/replay" in response.headers["set-cookie"]
    assert client.get("/replay/").status_code == 200


def test_other_kinds_of_connections_are_left_to_the_server(url):
    made = app(url)

    async def start():
        async with made.router.lifespan_context(made):
            return made.state.site.shown_url

    assert asyncio.run(start()).startswith("sqlite:///")
