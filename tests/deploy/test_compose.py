"""What can be checked of `deploy/` without Docker: it parses, and names what is there."""

import re
import tomllib
from configparser import ConfigParser
from itertools import pairwise

import psycopg
import pytest
import yaml
from sqlalchemy import make_url

from sqlbuffer.web.access import TOKEN
from tests.support.deployment import DEPLOY, SIZES, server_settings
from tests.support.markdown import ROOT

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
BUILT = {name: service for name, service in SERVICES.items() if "build" in service}


def mounts():
    """Yield (service, source, target) of each mount."""
    for name, service in SERVICES.items():
        for mount in service.get("volumes", ()):
            source, target = mount.split(":")[:2]
            yield name, source, target


def test_every_file_that_is_mounted_is_there():
    files = {source for _, source, _ in mounts() if source.startswith(".")}
    assert files == {"./postgresql.conf", "./pgbouncer.ini", "./prometheus.yml", "./alerts.yml"}
    assert [source for source in files if not (DEPLOY / source).is_file()] == []
    named = {source for _, source, _ in mounts() if not source.startswith(".")}
    assert named == set(COMPOSE["volumes"])


def test_every_image_is_built_from_files_that_are_there():
    stages = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    assert {service["build"]["target"] for service in BUILT.values()} == set(stages)
    for service in BUILT.values():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE)]
    sources = {word for words in copied for word in words if not word.startswith("--")}
    assert [source for source in sources if not (ROOT / source).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not {source.split("/")[0] for source in sources} & set(ignored)


def test_the_image_has_all_that_the_package_is_built_from():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {
        project["project"]["readme"],
        *project["project"]["license-files"],
        *wheel["packages"],
        *wheel["force-include"],
    }
    assert needed <= set(re.findall(r"[\w./]+", DOCKERFILE))


def test_no_secret_is_in_a_file_of_the_checkout():
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", ())}
    assert used == set(COMPOSE["secrets"])
    files = {name: secret["file"] for name, secret in COMPOSE["secrets"].items()}
    assert files == {name: f"./secrets/{name}" for name in used}
    assert "/deploy/secrets/" in (ROOT / ".gitignore").read_text().split()
    environments = [service.get("environment", {}) for service in SERVICES.values()]
    for name, value in (pair for each in environments for pair in each.items()):
        assert name.endswith("_FILE") or not re.search("pass|secret|token", name, re.IGNORECASE)
        assert not re.search(r"://[^/@]*:[^/@]*@", value), "a password in a URL"


def test_every_service_is_healthy_or_ends():
    without = {name for name, service in SERVICES.items() if "healthcheck" not in service}
    assert without == {"setup"}
    for service in SERVICES.values():
        for name, when in service.get("depends_on", {}).items():
            ends = name in without
            assert when["condition"] == (
                "service_completed_successfully" if ends else "service_healthy"
            )


def test_only_pgbouncer_can_be_reached_from_other_machines():
    published = {
        name: address.split(":")[0] if address[0] != "$" else address.split("}")[0]
        for name, service in SERVICES.items()
        for address in service.get("ports", ())
    }
    assert published == {
        "pgbouncer": "${BIND_ADDRESS:-127.0.0.1",
        "web": "127.0.0.1",
        "prometheus": "127.0.0.1",
    }


def test_the_example_of_env_has_every_variable_with_its_default():
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    used = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text))
    example = (DEPLOY / ".env.example").read_text(encoding="utf-8")
    assert dict(re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE)) == used


def test_the_log_of_the_page_has_no_token():
    assert TOKEN == "token"  # a parameter of the address
    assert "--no-access-log" in SERVICES["web"]["command"]


@pytest.mark.parametrize("name", ["web", "exporter"])
def test_a_health_check_asks_the_port_that_the_service_listens_at(name):
    from deploy import services

    (port,) = set(re.findall(r"127\.0\.0\.1:(\d+)", SERVICES[name]["healthcheck"]["test"][-1]))
    listens = {
        "web": SERVICES["web"]["command"][SERVICES["web"]["command"].index("--port") + 1],
        "exporter": str(services.EXPORTER_PORT),
    }
    assert port == listens[name]
    address = re.search(r":\d+(/static/\S+)'", SERVICES[name]["healthcheck"]["test"][-1])
    assert address is None or (ROOT / "sqlbuffer/web" / address[1].lstrip("/")).is_file()


def test_the_start_of_pgbouncer_writes_the_file_that_its_settings_name():
    script = (DEPLOY / "start-pgbouncer").read_text(encoding="utf-8")
    settings = (DEPLOY / "pgbouncer.ini").read_text(encoding="utf-8")
    (path,) = re.findall(r"^auth_file = (.+)$", settings, re.MULTILINE)
    (login,) = re.findall(r"^auth_user = (.+)$", settings, re.MULTILINE)
    assert f">{path}\n" in script
    assert f'"{login}"' in script
    assert set(re.findall(r"/run/secrets/(\w+)", script)) == set(SERVICES["pgbouncer"]["secrets"])
    assert f"install -d -o postgres {path.rpartition('/')[0]}" in DOCKERFILE
    mounted = {target for name, _, target in mounts() if name == "pgbouncer"}
    assert mounted == set(re.findall(r"exec pgbouncer (\S+)", script))
    assert (DEPLOY / "start-pgbouncer").stat().st_mode & 0o111


def test_the_services_find_each_other():
    pooler = ConfigParser(interpolation=None)
    pooler.read(DEPLOY / "pgbouncer.ini", encoding="utf-8")
    database = SERVICES["postgres"]["environment"]["POSTGRES_DB"]
    target = dict(word.split("=") for word in pooler["databases"][database].split())
    assert target == {"host": "postgres", "port": "5432", "dbname": database}
    port = pooler["pgbouncer"]["listen_port"]
    assert SERVICES["pgbouncer"]["ports"][0].endswith(f":{port}")
    assert port in SERVICES["pgbouncer"]["healthcheck"]["test"]
    for name in ("setup", "web", "exporter"):
        url = make_url(SERVICES[name]["environment"]["SQLBUFFER_URL"])
        assert url.database == database
        assert url.host in SERVICES
        assert url.port in (None, int(port))
        password = SERVICES[name]["environment"]["PGPASSWORD_FILE"]
        assert password == f"/run/secrets/{url.username}_password"
        assert password.rpartition("/")[2] in SERVICES[name]["secrets"]


def test_the_server_has_more_connections_than_the_pooler_opens():
    pooler = ConfigParser(interpolation=None)
    pooler.read(DEPLOY / "pgbouncer.ini", encoding="utf-8")
    sizes = pooler["pgbouncer"]
    reserved = 3  # superuser_reserved_connections
    allowed = int(server_settings()["max_connections"])
    assert int(sizes["max_db_connections"]) + 10 <= allowed - reserved
    assert int(sizes["default_pool_size"]) <= int(sizes["max_db_connections"])
    files = SERVICES["pgbouncer"]["ulimits"]["nofile"]
    assert int(sizes["max_client_conn"]) + int(sizes["max_db_connections"]) < files


# The settings of deploy/ are those of the servers of the tests.


OF_TESTS = {"listen_addresses", "max_connections", *SIZES}


@pytest.mark.parametrize(("name", "mark"), [("postgresql.conf", "#"), ("pgbouncer.ini", ";")])
def test_every_setting_is_explained(name, mark):
    lines = (DEPLOY / name).read_text(encoding="utf-8").splitlines()
    for before, line in pairwise(lines):
        follows = re.match(r"(listen_|log_dis|auth_query)", line)
        if " = " in line and not line.startswith(mark) and not follows:
            assert before.startswith(mark), line


def test_the_server_of_the_tests_runs_with_the_settings(postgres_server, postgres_url):
    """It also has a size of its own, and room for the connections of all tests."""
    if not postgres_server.may_make_roles():
        pytest.skip("allowed: the server of the tests was named by its user")
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute(
            "SELECT name, applied, error, setting FROM pg_file_settings ORDER BY seqno"
        ).fetchall()
    applied = {name: setting for name, is_applied, error, setting in rows if is_applied}
    expected = {
        name: value.strip("'") for name, value in server_settings().items() if name not in OF_TESTS
    }
    assert {name: applied.get(name) for name in expected} == expected
    assert len(expected) >= 12
