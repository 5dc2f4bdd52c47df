"""Use the installed wheel, with nothing beside it: `make release` runs this outside the tree."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlbuffer import ReplayBuffer


def check_what_ships() -> None:
    package = Path(str(files("sqlbuffer")))
    assert package.is_relative_to(sys.prefix), f"{package} is not the installed wheel"
    for pattern in (
        "py.typed",
        "migrations/env.py",
        "migrations/script.py.mako",
        "migrations/versions/0001_*.py",
        "migrations/versions/0001_first_schema/common/*.sql",
        "migrations/versions/0001_first_schema/sqlite/*.sql",
        "migrations/versions/0001_first_schema/postgresql/*.sql",
        "storage/schema/roles.sql",
        "errors.md",
    ):
        assert list(package.glob(pattern)), f"the wheel has no {pattern}"


def store_and_sample(url: str) -> None:
    with ReplayBuffer(url, name="default", max_capacity=100) as buffer:
        for step in range(10):
            buffer.add(
                task_id="t", agent_id="a", step=step, state={"x": step}, actions=[0], reward=1.0
            )
        assert len(buffer) == 10
        rows = buffer.sample(8)
        assert len({row.exp_meta.step for row in rows}) == 8
    assert ReplayBuffer.list(url)


def main() -> None:
    check_what_ships()
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/replay.db"
        store_and_sample(url)
        command = Path(sys.executable).with_name("sqlbuffer")
        subprocess.run([command, "db", "check", url], check=True)
        subprocess.run([command, "errors", "URLError"], check=True)
    print("The wheel works on its own.")


if __name__ == "__main__":
    main()
