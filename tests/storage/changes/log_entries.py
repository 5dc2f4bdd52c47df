"""Reads the change log with plain SQL."""

import json

from tests.support.sql import is_sqlite, run


def entries(url, name="default"):
    """Return (kind, seqs) of the entries of a buffer; seqs is None where the entry names none."""
    found = run(
        url,
        "SELECT kind, seqs FROM change_log WHERE buffer_id = "
        "(SELECT id FROM buffers WHERE name = :name) ORDER BY id",
        name=name,
    )
    if is_sqlite(url):
        return [(kind, json.loads(seqs)) for kind, seqs in found]
    return [tuple(row) for row in found]


def origins(url):
    found = run(url, "SELECT origin FROM change_log ORDER BY id")
    return [None if origin is None else str(origin) for (origin,) in found]
