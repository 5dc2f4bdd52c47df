"""What all workers of a test run share: the first one that needs a thing makes it."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.deployment import SIZES, server_settings
from tests.support.postgres import (
    SERVER_VARIABLE,
    PostgresServer,
    start_bundled,
    stop_bundled,
)

# No test crashes the machine: what a server wrote survives the death of any process.
_SETTINGS = {"fsync": "off", "max_connections": 400}
# Those that the bundled server sets for its own address, or that depend on the machine.
_NOT_DEPLOYED = ("listen_addresses", *SIZES)


class Shared:
    """A folder of the run, and values that are made once for all its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # No other run on the same machine has this name.
        self.run = folder.name.replace("-", "_").lower()

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what the first call with this name made: a value that JSON can hold.

        Other workers wait for the one that makes it.
        """
        made = self.folder / f"{name}.json"
        with open(self.folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                made.write_text(json.dumps(make()))
            return json.loads(made.read_text())

    def postgres_server(self) -> PostgresServer:
        """Return the run's server: the one that the environment names, else the bundled one."""
        return PostgresServer(self.once("server", self._server_url), self.run)

    def _server_url(self) -> str:
        deployed = server_settings()
        settings = {name: deployed[name] for name in deployed if name not in _NOT_DEPLOYED}
        settings |= _SETTINGS
        return os.environ.get(SERVER_VARIABLE) or start_bundled(self.folder, **settings)

    def close(self) -> None:
        """Stop the server and remove everything."""
        if SERVER_VARIABLE in os.environ and (self.folder / "server.json").exists():
            with closing(self.postgres_server()) as server:
                server.drop_databases(self.run)
                if (groups := self.folder / "groups.json").exists():
                    server.drop_roles(json.loads(groups.read_text()))
                if (roles := self.folder / "roles_template.json").exists():
                    server.drop_roles([json.loads(roles.read_text())["owner"]])
        stop_bundled(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
