"""What the figures were measured on."""

import os
import platform
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.bench import FULL_ROWS, Bench
from tests.support.sql import scalar


def facts(benches: Sequence[Bench]) -> str:
    """Return a paragraph on the machine, the versions and the sizes."""
    scale = benches[0].scale
    sizes = f"{scale.rows:,} rows, or {scale.capacity:,} where rows are written"
    if not scale.full:
        sizes += f". **A reduced run**: the targets are set for {FULL_ROWS:,} rows"
    return listed([*machine_and_versions(benches), f"Sizes: {sizes}."])


def facts_beside(benches: Sequence[Bench], distributions: Sequence[str]) -> str:
    """Return a paragraph on the machine, the versions, also of other buffers, and the sizes."""
    scale = benches[0].scale
    versions = [f"{name} {version(name)}" for name in dict.fromkeys(distributions)]
    for name in ("numpy", "torch", "tensorflow"):
        if name in sys.modules:
            with suppress(ModuleNotFoundError):
                versions.append(f"{name} {version(name)}")
    sizes = f"Sizes: {scale.rows:,} transitions in each buffer"
    if not scale.full:
        sizes += f". **A reduced run**: the targets are set for {FULL_ROWS:,}"
    return listed([*machine_and_versions(benches, versions), f"{sizes}."])


def machine_and_versions(benches: Sequence[Bench], others: Sequence[str] = ()) -> list[str]:
    """Return a line on the machine, and one on the versions: ours and others."""
    versions = [f"Python {platform.python_version()}", *map(_version, benches), *others]
    return [
        f"Machine: {os.cpu_count()} cores, {_processor()}, {platform.system()}.",
        f"Versions: {', '.join(versions)}.",
    ]


def listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _version(bench: Bench) -> str:
    if bench.kind == "sqlite":
        return f"SQLite {sqlite3.sqlite_version}"
    with bench.database() as url:
        return f"PostgreSQL {scalar(url, 'SHOW server_version').split()[0]}"
