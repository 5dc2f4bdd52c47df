"""Conditions that exclude rows from sampling, for rows with some numbers."""

from typing import Any

from sqlalchemy import Boolean
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.schema.compiled_clauses import processed
from sqlbuffer.storage.schema.list_parameters import pg_array


class not_used_up(FunctionElement[bool]):
    """True if a row of `experiences` was used less than `max_use` times.

    `not_used_up(seq, buffer_id, seqs, max_use)` is for rows with one of some numbers. PostgreSQL
    looks up the counts of all numbers together: a third of the time of one subquery for each row.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(not_used_up, "postgresql")
def _pg_not_used_up(element: not_used_up, compiler: Any, **kw: Any) -> str:
    seq, buffer_id, seqs, max_use = processed(element, compiler, kw)
    return (
        f"{seq} NOT IN (SELECT u.seq FROM uses u WHERE u.buffer_id = {buffer_id} "
        f"AND u.seq = ANY ({pg_array(seqs)}) AND u.n_uses >= {max_use})"
    )


@compiles(not_used_up, "sqlite")
def _sqlite_not_used_up(element: not_used_up, compiler: Any, **kw: Any) -> str:
    seq, buffer_id, _, max_use = processed(element, compiler, kw)
    return (
        f"NOT EXISTS (SELECT 1 FROM uses u WHERE u.buffer_id = {buffer_id} "
        f"AND u.seq = {seq} AND u.n_uses >= {max_use})"
    )


class not_in_quarantine(FunctionElement[bool]):
    """True if a row of `experiences` is not in quarantine.

    `not_in_quarantine(seq, buffer_id, seqs)` is for rows with one of some numbers; see
    `not_used_up`.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(not_in_quarantine, "postgresql")
def _pg_not_in_quarantine(element: not_in_quarantine, compiler: Any, **kw: Any) -> str:
    seq, buffer_id, seqs = processed(element, compiler, kw)
    return (
        f"{seq} NOT IN (SELECT q.seq FROM quarantine q WHERE q.buffer_id = {buffer_id} "
        f"AND q.seq = ANY ({pg_array(seqs)}))"
    )


@compiles(not_in_quarantine, "sqlite")
def _sqlite_not_in_quarantine(element: not_in_quarantine, compiler: Any, **kw: Any) -> str:
    seq, buffer_id, _ = processed(element, compiler, kw)
    return (
        f"NOT EXISTS (SELECT 1 FROM quarantine q WHERE q.buffer_id = {buffer_id} AND q.seq = {seq})"
    )
