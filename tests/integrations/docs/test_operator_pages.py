"""Pages for those who run a server are done as their readers would do them."""

import logging
import os
import re
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from sqlbuffer import ReplayBuffer
from tests.cli.conftest import existing_logins
from tests.conftest import close_pool
from tests.docs.pages import SERVER_URL, Reader, fenced_blocks, text_of
from tests.support.deployment import DEPLOY
from tests.support.pgbouncer import pgbouncer, pgbouncer_program
from tests.support.postgres import installed_programs
from tests.support.servers import (
    own_server,
    primary_and_standby,
    server_programs,
    server_user,
)
from tests.support.sql import scalar

ADMIN_URL = "postgresql://postgres@db.internal/replay"
WRITER_URL = "postgresql://rollouts@db.internal/replay"
ENCRYPTION = "docs/how-to/encrypt-connections.md"


def test_lost_connections(read, postgres_url):
    page = read("docs/how-to/handle-lost-connections.md", {SERVER_URL: postgres_url})
    assert len(page.names["buffer"]) == 7


def test_copying(read, postgres_url):
    page = read("docs/how-to/copy-a-buffer.md", {SERVER_URL: postgres_url})
    assert page.names["report"].n_steps == 100


def test_a_shared_file(read):
    page = read("docs/how-to/share-a-sqlite-file.md")
    assert "cartpole" in page.printed["sqlbuffer ls"]


def test_roles(read, postgres_server, postgres_url, postgres_programs, request):
    if not postgres_server.may_make_roles():
        pytest.skip("allowed: the role that the tests connect as may not make others")
    request.getfixturevalue("postgres_groups")
    with existing_logins(postgres_url) as create:
        login = create("sqlbuffer_writer")
        page = read(
            "docs/how-to/set-up-roles.md",
            {WRITER_URL: login, ADMIN_URL: postgres_url, SERVER_URL: postgres_url},
            programs=postgres_programs,
        )
        page.names["buffer"].close()
        close_pool(login)
    checks = page.printed[f"sqlbuffer doctor {WRITER_URL}"]
    for name in ("can read", "can write", "may VACUUM"):
        assert f" {name}: " in checks
        assert f"`{name}`" in text_of(page.document)


def test_upgrading(read, make_database_url, postgres_programs, postgres_groups):
    url = make_database_url("postgresql", schema=True)
    page = read(
        "docs/how-to/upgrade-without-stopping.md",
        {SERVER_URL: url, ADMIN_URL: url},
        programs=postgres_programs,
    )
    assert "the schema serves this package" in page.printed[f"sqlbuffer db check {SERVER_URL}"]
    (statement,) = (b.body for b in fenced_blocks(page.document) if b.language == "postgresql")
    with ReplayBuffer(url) as buffer, psycopg.connect(url) as connection:
        buffer.add(task_id="t", step=0)
        sessions = connection.execute(statement).fetchall()
        assert sessions
        assert all(name.startswith("sqlbuffer ") for _, name, _ in sessions)


def test_monitoring(read, make_database_url):
    url = make_database_url("postgresql", schema=True)
    ReplayBuffer(url, "walk").close()
    page = read("docs/how-to/monitor-and-alert.md", {SERVER_URL: url})
    findings = page.printed[f"sqlbuffer doctor {SERVER_URL} --ndjson"]
    assert '"autovacuum"' in findings
    figures = page.printed[f"sqlbuffer watch {SERVER_URL} --once --json"]
    assert '"buffer":"walk"' in figures


def test_a_standby_is_read(read):
    programs = server_programs()
    if programs is None:
        pytest.skip("allowed: no programs of PostgreSQL that this user may run")
    with primary_and_standby(programs) as (primary, standby):
        ReplayBuffer(primary.url, "other", create=True).close()
        standby_url = "postgresql://me@standby.internal/replay"
        urls = {SERVER_URL: primary.url, standby_url: standby.url}
        page = read("docs/how-to/read-from-a-standby.md", urls)
        assert page.names["buffer"].connection.read_url == standby.url
        close_pool(primary.url)
        close_pool(standby.url)


def test_a_managed_service_is_checked(read, postgres_url):
    read("docs/how-to/use-pgbouncer-or-managed-postgresql.md", {SERVER_URL: postgres_url})
    assert ReplayBuffer.list(postgres_url) == []
    settings = (DEPLOY / "pgbouncer.ini").read_text(encoding="utf-8").splitlines()
    texts = [
        block.body.splitlines()
        for block in fenced_blocks("docs/how-to/use-pgbouncer-or-managed-postgresql.md")
        if block.language == "text" and "pool_mode" in block.body
    ]
    assert [line for line in texts[0] if line not in settings] == []


def test_the_secrets_of_compose_are_those_that_the_page_makes(read):
    read("docs/how-to/deploy-with-compose.md")
    made = {path.name for path in Path("deploy/secrets").iterdir()}
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    assert made == set(re.findall(r"file: \./secrets/(\w+)", text))
    assert Path("deploy/secrets").stat().st_mode & 0o777 == 0o700
    assert {len(path.read_text().strip()) for path in Path("deploy/secrets").iterdir()} == {48}


def settings_of(name, mark):
    """Return the settings of a text block of the page that begins with the name of a file."""
    (body,) = (b.body for b in fenced_blocks(ENCRYPTION) if b.body.startswith(f"{mark} {name}"))
    lines = [line.partition(" = ") for line in body.splitlines()[1:] if " = " in line]
    return {key: value.strip("'") for key, _, value in lines}


@pytest.fixture
def encrypted(tmp_path, monkeypatch):
    """Yield a page, and what starts the servers once it has made the certificates."""
    programs, program = installed_programs(), pgbouncer_program()
    if None in (programs, program, shutil.which("openssl")):
        pytest.skip("allowed: no openssl, no pgbouncer, or no PostgreSQL with TLS on this machine")
    monkeypatch.chdir(tmp_path)
    # An address of this machine that no other server listens at.
    address = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 200}.7"
    folder = Path(tempfile.mkdtemp(prefix="sqlbuffer-tls-"))
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, folder)
        folder.chmod(0o755)

        def start():
            keep_certificate(folder)
            server = opened.enter_context(own_server(programs, listen_addresses=address))
            url = encrypt(server.url, folder)
            pooled = settings_of("pgbouncer.ini", ";")
            for name in ("client_tls_cert_file", "client_tls_key_file"):
                pooled[name] = folder / Path(pooled[name]).name
            opened.enter_context(pgbouncer(program, url, listen_addr=address, **pooled))
            monkeypatch.setenv("PGHOSTADDR", address)

        yield Reader(ENCRYPTION, monkeypatch, {}), start


def keep_certificate(folder):
    for name in ("server.crt", "server.key"):
        copy = Path(shutil.copy(name, folder))
        copy.chmod(0o600)
        if (user := server_user()) is not None:
            shutil.chown(copy, user)


def encrypt(url, folder):
    """Do to a server what the page says; return the URL of the login, by its socket."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE ROLE rollouts LOGIN PASSWORD 'swordfish'")
        admin.execute("CREATE DATABASE replay OWNER rollouts")
        for name, value in settings_of("postgresql.conf", "#").items():
            path = folder / Path(value).name if name.endswith("_file") else value
            admin.execute(f"ALTER SYSTEM SET {name} = '{path}'")
        (hba,) = admin.execute("SHOW hba_file").fetchone()
        (rules,) = (b.body for b in fenced_blocks(ENCRYPTION) if b.body.startswith("# pg_hba"))
        Path(hba).write_text(rules)
        admin.execute("SELECT pg_reload_conf()")
    own = url.replace("postgres@/postgres?", "rollouts:swordfish@/replay?")
    ReplayBuffer(own, create=True).close()
    close_pool(own)
    return own


def test_connections_are_encrypted_and_secrets_kept(encrypted, monkeypatch, caplog):
    page, start = encrypted
    caplog.set_level(logging.DEBUG)
    for block in fenced_blocks(ENCRYPTION):
        page.do(block)
        if block.language == "console" and "server.crt" in block.body:
            start()
    used = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    url = os.environ["SQLBUFFER_URL"]
    assert scalar(url, used) is True
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect("postgresql://rollouts@db.internal/replay?sslmode=disable")
    # Through pgbouncer, which has the same certificate.
    pooled = url.replace("db.internal/", "db.internal:6432/")
    with ReplayBuffer(pooled, "walk") as buffer:
        assert len(buffer) == 1
    with pytest.raises(psycopg.OperationalError, match="SSL required"):
        psycopg.connect("postgresql://rollouts@db.internal:6432/replay?sslmode=disable")
    # A password file that others may read is ignored.
    Path("pgpass").chmod(0o644)
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(url)
    assert "swordfish" not in caplog.text
    for opened in (url, pooled):
        close_pool(opened)
