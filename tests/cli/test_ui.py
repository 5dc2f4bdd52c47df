import os
import re
import signal
import socket
import threading
import webbrowser
from contextlib import contextmanager

import httpx
import pytest

from sqlbuffer.cli import pages
from tests.cli.conftest import start


@contextmanager
def served(url, *options):
    """Start `sqlbuffer ui`, and yield the process and the address that it prints."""
    process = start("ui", url, "--no-open", "--port", "0", *options)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_prints_the_address_serves_the_page_and_ends_on_an_interrupt(filled):
    with served(filled) as (process, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
        with httpx.Client() as client:
            assert client.get(address.partition("?")[0]).status_code == 403
            page = client.get(address, follow_redirects=True)
            assert page.status_code == 200
            assert "token" not in str(page.url)
            assert "arrays" in page.text
            with client.stream("GET", f"{page.url}live") as stream:
                lines = stream.iter_lines()
                assert next(lines) == "retry: 3000"
                threading.Timer(0.1, process.send_signal, [signal.SIGINT]).start()
                list(lines)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


@pytest.mark.thorough
@pytest.mark.slow
def test_two_starts_have_two_tokens_and_a_host_that_others_reach_is_warned_about(filled):
    with served(filled) as (_, first), served(filled, "--host", "0.0.0.0") as (process, second):
        tokens = [address.partition("token=")[2] for address in (first, second)]
        assert tokens[0] != tokens[1]
        port = re.search(r":(\d+)/", second)[1]
        # Which the server answers once it listens to signals too.
        assert httpx.get(f"http://127.0.0.1:{port}/?token={tokens[1]}").status_code == 303
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "Nothing is encrypted" in process.stderr.read()


def test_a_port_that_is_taken_is_told(run, filled):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run("ui", filled, "--port", port, "--no-open")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"port {port} of 127.0.0.1 is taken" in result.stderr
    assert "--port 0" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "no.such.host.invalid"], "there is no address 'no.such.host.invalid'"),
        (["--host", "192.0.2.1"], "does not have the address '192.0.2.1'"),
        (["--port", "65536"], "equal to 65535"),
        (["--port", "-1"], "equal to 0"),
    ],
)
def test_an_address_that_cannot_be_is_told(run, filled, options, said):
    result = run("ui", filled, "--no-open", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_database_that_is_not_there_or_has_no_schema_is_told(run, tmp_path):
    result = run("ui", f"sqlite:///{tmp_path}/none.db", "--no-open")
    assert (result.exit_code, result.stdout) == (3, "")
    (tmp_path / "empty.db").touch()
    result = run("ui", f"{tmp_path}/empty.db", "--no-open")
    assert (result.exit_code, "db init" in result.stderr) == (4, True)
    assert run("ui", "sqlite://", "--no-open").exit_code == 2
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("is_of_text", "opened"), [(False, ["http://127.0.0.1:1/?token=t"]), (True, [])]
)
def test_opens_a_browser_but_none_that_takes_the_terminal(monkeypatch, is_of_text, opened):
    seen, done = [], threading.Event()

    class Browser(webbrowser.GenericBrowser if is_of_text else webbrowser.BackgroundBrowser):
        def open(self, url, new=0, autoraise=True):
            seen.append(url)
            done.set()

    if is_of_text:
        Browser = webbrowser.GenericBrowser
    monkeypatch.setattr(webbrowser, "get", lambda: Browser("browser"))
    pages._open("http://127.0.0.1:1/?token=t")
    assert done.wait(0 if is_of_text else 20) is not is_of_text
    assert seen == opened


def test_without_the_extra_the_command_to_type_is_told(run, filled, monkeypatch):
    import builtins

    known = builtins.__import__

    def without(name, *args, **options):
        if name.partition(".")[0] == "uvicorn":
            raise ImportError(name)
        return known(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    result = run("ui", filled, "--no-open")
    assert result.exit_code == 1
    assert "pip install '.[ui]'` in the checkout" in result.stderr


def test_writes_one_file_and_replaces_it_when_told_to(run, filled, tmp_path):
    path = tmp_path / "out.html"
    result = run("report", filled, "-o", str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    first = path.read_text(encoding="utf-8")
    assert all(f">{name}</h1>" in first for name in ("arrays", "empty", "talks"))
    again = run("report", filled, "-o", str(path))
    assert again.exit_code == 2
    assert "--overwrite replaces it" in again.stderr
    assert run("report", filled, "-o", str(path), "--overwrite", "-b", "talks").exit_code == 0
    assert ">arrays</h1>" not in path.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.glob("*.html")] == ["out.html"]
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.thorough
def test_standard_output_has_the_file_alone(run, filled):
    result = run("report", filled, "-o", "-", "-b", "talks")
    assert result.stdout.startswith("<!doctype html>")
    assert result.stdout.rstrip().endswith("</html>")


@pytest.mark.thorough
def test_what_cannot_be_written_or_read_is_told(run, filled, tmp_path):
    path = tmp_path / "out.html"
    missing = run("report", filled, "-o", str(path), "-b", "no")
    assert (missing.exit_code, "there is no buffer 'no'" in missing.stderr) == (3, True)
    assert run("report", filled, "-o", str(tmp_path / "no" / "out.html")).exit_code == 1
    assert run("report", f"sqlite:///{tmp_path}/none.db", "-o", str(path)).exit_code == 3
    assert run("report", filled, "-o", str(tmp_path), "--overwrite").exit_code == 1
    assert not [name for name in os.listdir(tmp_path) if "out" in name or name.startswith(".")]
