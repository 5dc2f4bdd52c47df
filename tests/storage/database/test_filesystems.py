"""A SQLite file on a network file system is warned of."""

import os
import warnings
from pathlib import Path

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.database import sqlite
from sqlbuffer.storage.database.sqlite import NetworkFileSystemWarning, filesystem_of

LINE = "36 35 98:0 / {point} rw,noatime master:1 - {kind} server:/export rw,vers=4"


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    """Return a function that has the kernel's table say what is mounted where."""
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(sqlite, "MOUNTS", table)

    def mount(*mounted):
        lines = [LINE.format(point=str(p).replace(" ", "\\040"), kind=k) for p, k in mounted]
        table.write_text("\n".join(["garbage", *lines]) + "\n")

    return mount


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_opening_a_file_over_a_network_warns_and_works(mounts, tmp_path, kind):
    mounts(("/", "ext4"), (tmp_path, kind))
    with pytest.warns(NetworkFileSystemWarning, match=rf"{kind}.*use PostgreSQL"):
        buffer = ReplayBuffer(f"sqlite:///{tmp_path}/replay.db")
    assert buffer.add(state=1).inserted == 1
    buffer.close()


def test_a_local_file_and_memory_are_not_warned_of(mounts, tmp_path):
    mounts(("/", "nfs4"), (tmp_path, "ext4"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ReplayBuffer(f"sqlite:///{tmp_path}/replay.db").close()
        ReplayBuffer("sqlite://").close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/x.db", "nfs"),
        ("/data", "nfs"),
        ("/database/x.db", "ext4"),
        ("/data/local/x.db", "xfs"),
        ("/with space/x.db", "cifs"),
        ("/twice/x.db", "tmpfs"),
    ],
)
def test_the_innermost_mount_counts(mounts, path, kind):
    mounts(
        ("/", "ext4"),
        ("/data", "nfs"),
        ("/data/local", "xfs"),
        ("/with space", "cifs"),
        ("/twice", "nfs"),
        ("/twice", "tmpfs"),
    )
    assert filesystem_of(Path(path)) == kind


def test_links_are_followed(mounts, tmp_path):
    (tmp_path / "far").mkdir()
    os.symlink(tmp_path / "far", tmp_path / "near")
    mounts(("/", "ext4"), (tmp_path / "far", "nfs"))
    assert filesystem_of(tmp_path / "near" / "x.db") == "nfs"


def test_nothing_is_said_where_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr(sqlite, "MOUNTS", tmp_path / "none")
    assert filesystem_of(tmp_path) is None


@pytest.mark.skipif(not sqlite.MOUNTS.exists(), reason="allowed: only Linux says what is mounted")
def test_the_kernel_knows_where_the_tests_run(tmp_path):
    assert filesystem_of(tmp_path)
