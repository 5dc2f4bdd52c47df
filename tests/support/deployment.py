"""The settings of `deploy/`, which the servers of the tests run with."""

import re
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path

from tests.support.markdown import ROOT

DEPLOY = ROOT / "deploy"
# They depend on the machine. The server of the test run lives in memory, next to others.
SIZES = ("shared_buffers", "effective_cache_size", "maintenance_work_mem", "max_wal_size")
_SETTING = re.compile(r"(\w+) = (.+)")


def server_settings() -> dict[str, str]:
    """Return the settings of deploy/postgresql.conf as they are written."""
    lines = (DEPLOY / "postgresql.conf").read_text(encoding="utf-8").splitlines()
    found = [_SETTING.fullmatch(line) for line in lines if line and not line.startswith("#")]
    return {match[1]: match[2] for match in found if match}


def pooler_settings(
    folder: Path, database: str, *, userlist: str | None, others: Mapping[str, object]
) -> str:
    """Return deploy/pgbouncer.ini for a pgbouncer with a socket in a folder and no network.

    Args:
        folder: Where the socket is.
        database: A connection string of the server.
        userlist: What the container writes into auth_file; None: clients need no password.
        others: Settings that are to be others.
    """
    parser = ConfigParser(interpolation=None, inline_comment_prefixes=None)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(DEPLOY / "pgbouncer.ini", encoding="utf-8")
    parser["databases"] = {"*": database}
    parser["pgbouncer"].update({"listen_addr": "", "unix_socket_dir": str(folder)})
    if userlist is None:
        for name in ("auth_user", "auth_query", "auth_file"):
            del parser["pgbouncer"][name]
        parser["pgbouncer"]["auth_type"] = "any"
    else:
        path = folder / "userlist.txt"
        path.write_text(userlist)
        parser["pgbouncer"]["auth_file"] = str(path)
    parser["pgbouncer"].update({name: str(value) for name, value in others.items()})
    lines = []
    for section in parser.sections():
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in parser[section].items())]
    return "\n".join(lines) + "\n"
