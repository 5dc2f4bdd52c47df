"""The services of deploy/compose.yaml work together, on servers of our own without containers."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url
from typer.testing import CliRunner

from deploy import services
from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.cli import app
from sqlbuffer.errors import StorageReadOnlyError, WrongPasswordError
from tests.conftest import close_pool
from tests.support.deployment import DEPLOY, server_settings
from tests.support.markdown import ROOT
from tests.support.pgbouncer import pgbouncer, pgbouncer_program
from tests.support.processes import wait_until
from tests.support.servers import own_server, server_programs
from tests.support.stepped_rows import make_rows
from tests.support.web_client import WebClient

NAMES = [f"{login}_password" for login in ("postgres", *services.LOGINS)] + ["web_token"]
RULES = "local all all scram-sha-256\n"


@pytest.fixture(scope="module")
def stack():
    """Yield the URLs of PostgreSQL and of pgbouncer, and the folder of the secrets."""
    programs, program = server_programs(), pgbouncer_program()
    if programs is None or program is None:
        pytest.skip("allowed: no programs of PostgreSQL, or no pgbouncer, on this machine")
    pytest.importorskip("prometheus_client", reason="allowed: prometheus_client is not installed")
    folder = Path(tempfile.mkdtemp(prefix="sqlbuffer-stack-"))
    folder.chmod(0o755)
    # The server's user has to read it; the folder of the checkout may be closed to it.
    configuration = shutil.copy(DEPLOY / "postgresql.conf", folder)
    for name in NAMES:
        (folder / name).write_text(secrets.token_hex(24) + "\n")
    with ExitStack() as opened, pytest.MonkeyPatch.context() as patch:
        opened.callback(shutil.rmtree, folder)
        server = opened.enter_context(own_server(programs, config_file=configuration))
        ask_for_passwords(server.url, (folder / "postgres_password").read_text().strip())
        url = server.url.replace("/postgres?", "/replay?")
        patch.setenv("SECRETS", str(folder))
        patch.setenv("PGPASSWORD_FILE", str(folder / "postgres_password"))
        patch.setenv("SQLBUFFER_URL", url)
        services.use_password_file()
        for _ in range(2):  # each start of the containers runs it
            services.set_up()
        patch.delenv("PGPASSWORD")
        userlist = f'"pgbouncer" "{services.secret("pgbouncer_password")}"\n'
        through = opened.enter_context(
            pgbouncer(program, url_of("monitor", url), userlist=userlist)
        )
        patch.delenv("SQLBUFFER_URL")
        yield url, through
        close_pool(url)


def ask_for_passwords(url, password):
    """Do what the image of PostgreSQL does at its first start."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"ALTER ROLE postgres PASSWORD '{password}'")
        admin.execute("CREATE DATABASE replay")
        (path,) = admin.execute("SHOW hba_file").fetchone()
        Path(path).write_text(RULES)
        admin.execute("SELECT pg_reload_conf()")


def url_of(login, url):
    named = make_url(url).set(username=login, password=services.secret(f"{login}_password"))
    return named.render_as_string(hide_password=False)


def without_password(url):
    return make_url(url)._replace(password=None).render_as_string()


def test_the_server_takes_every_setting_of_the_file(stack):
    with psycopg.connect(url_of("postgres", stack[0])) as connection:
        rows = connection.execute("SELECT name, error, applied FROM pg_file_settings").fetchall()
        assert {name for name, *_ in rows} == set(server_settings())
        # The test has no network.
        assert {name for name, _, applied in rows if not applied} == {"listen_addresses"}


def test_each_login_does_through_pgbouncer_what_its_role_may(stack):
    _, through = stack
    writer, trainer, analyst = (
        url_of(name, through) for name in ("rollouts", "trainer", "analyst")
    )
    with ReplayBuffer(writer, "runs", fields={"obs": "float32"}) as buffer:
        buffer.extend({"obs": range(100)}, task_id="t", casting="unsafe")
        assert len(buffer) == 100
        with pytest.raises(StorageReadOnlyError, match="sqlbuffer_learner"):
            buffer.delete(QueryBuilder().eq("task_id", "t"))
    with ReplayBuffer(analyst, "runs") as buffer:
        assert len(buffer.sample(8)) == 8
        with pytest.raises(StorageReadOnlyError, match="sqlbuffer_writer"):
            buffer.extend({"obs": [1.0]})
    with ReplayBuffer(trainer, "runs") as buffer:
        assert buffer.delete(QueryBuilder().eq("task_id", "t")) == 100
    for url in (writer, trainer, analyst):
        close_pool(url)


def test_a_wrong_password_and_a_superuser_do_not_pass_pgbouncer(stack):
    through = make_url(stack[1])
    for login, password in [
        ("rollouts", "wrong"),
        ("postgres", services.secret("postgres_password")),
        ("unknown", "x"),
    ]:
        url = through.set(username=login, password=password).render_as_string(hide_password=False)
        with pytest.raises(psycopg.OperationalError, match=r"authentication failed|no such user"):
            psycopg.connect(url)
    with pytest.raises(WrongPasswordError):
        ReplayBuffer(through.set(username="rollouts", password="wrong"))


def test_doctor_has_no_warning(stack):
    url = url_of("postgres", stack[0])
    printed = CliRunner().invoke(app, ["doctor", url]).stdout
    assert [line for line in printed.splitlines() if not line.startswith("OK ")] == []
    close_pool(url)


def test_a_dump_is_restored_with_the_rights_of_the_logins(stack, tmp_path):
    programs, url = server_programs(), url_of("postgres", stack[0])
    if not (programs / "pg_dump").exists():
        pytest.skip("allowed: no pg_dump on this machine")
    writer = url_of("rollouts", stack[0])
    with ReplayBuffer(writer, "kept", max_capacity=5) as buffer:
        buffer.store_batch(make_rows(range(8)))
        rows = list(buffer)
    close_pool(writer)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE again")
    dump, again = tmp_path / "replay.dump", url.replace("/replay?", "/again?")
    for words in (
        ["pg_dump", "--format=custom", f"--file={dump}", url],
        ["pg_restore", "--exit-on-error", f"--dbname={again}", dump],
    ):
        subprocess.run([programs / words[0], *words[1:]], check=True, timeout=120)
    printed = CliRunner().invoke(app, ["doctor", again]).stdout
    assert [line for line in printed.splitlines() if not line.startswith("OK ")] == []
    restored = writer.replace("/replay?", "/again?")
    with ReplayBuffer(restored, "kept") as buffer:
        assert list(buffer) == rows
        assert buffer.store_batch(make_rows(range(8, 10))).inserted == 2
    for opened in (again, restored, url):
        close_pool(opened)


def test_the_page_lets_in_who_has_the_token(stack, monkeypatch):
    writer = url_of("rollouts", stack[1])
    ReplayBuffer(writer, "shown").close()
    close_pool(writer)
    monkeypatch.setenv("SQLBUFFER_URL", without_password(stack[1]))
    monkeypatch.setenv("PGPASSWORD_FILE", f"{os.environ['SECRETS']}/monitor_password")
    monkeypatch.setenv("PGPASSWORD", "")
    client = WebClient(services.page())
    assert client.get("/").status_code == 403
    assert client.get("/", params={"token": services.secret("web_token")}).status_code == 303
    answer = client.get("/")
    assert answer.status_code == 200
    assert "shown" in answer.text
    client.app.state.site.close()


def test_the_exporter_serves_figures_through_pgbouncer(stack):
    writer = url_of("rollouts", stack[1])
    ReplayBuffer(writer, "figures").close()
    close_pool(writer)
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SQLBUFFER_URL": without_password(stack[1]),
        "PGPASSWORD_FILE": f"{os.environ['SECRETS']}/monitor_password",
        "PORT": str(port),
    }
    command = [sys.executable, str(DEPLOY / "services.py"), "exporter"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    found = []

    def answers():
        assert process.poll() is None, process.stderr.read()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                found.append(answer.read().decode())
        except OSError:
            return False
        return True

    try:
        wait_until(answers, "the exporter to answer")
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert "sqlbuffer_up 1.0" in found[0]
    assert "sqlbuffer_database_bytes" in found[0]
    assert 'sqlbuffer_check_status{check="connections"} 0.0' in found[0]
    assert 'sqlbuffer_rows{buffer="figures"}' in found[0]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_a_program_that_is_not_there_is_refused():
    command = [sys.executable, str(DEPLOY / "services.py"), "everything"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "usage: python services.py setup | exporter" in done.stderr
