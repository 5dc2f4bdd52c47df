"""Why too few rows or groups can be claimed, in words for people."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from itertools import islice
from typing import Any

from sqlalchemy import Connection, case, func, select

from sqlbuffer.config import SamplingConfig
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.buffers.catalog import why_empty
from sqlbuffer.storage.buffers.window import SampledWindow, select_sampled_window
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import reading
from sqlbuffer.storage.eligibility import Eligibility
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.leases.choosing import (
    GROUPS,
    ClaimRequest,
    Scope,
    in_queue,
    in_window,
    is_free,
    is_of_incomplete,
    matches,
    states_of_groups,
)
from sqlbuffer.storage.leases.tables import queue_items
from sqlbuffer.storage.rows.layouts import steps_of
from sqlbuffer.storage.sampling.candidate_source import CandidateSource

# Maximum number of groups that an error names.
SHOWN = 5


def missing(source: CandidateSource, request: ClaimRequest, timeout_s: float) -> str:
    """Return a message for people that names what is missing."""
    info = source.buffer.info
    with translated(source.buffer.url), reading(source.buffer.engine) as connection:
        statement = select_sampled_window(info.id, info.config.retention.evict_by, steps_of(info))
        window = SampledWindow(*connection.execute(statement).one())
        limits = source.restrictions.limits_of_leases(window)
        scope = Scope(info.id, window.low, None, limits)
        rows = _rows_by_state(connection, scope, request)
        if not rows:
            lack = f"the buffer {why_empty(connection, info.id)}"
        elif request.group_by is None:
            lack = _described_rows(rows, info.config.sampling)
        else:
            lack = _described_groups(connection, scope, request, rows, info.config.sampling)
    asked = "rows" if request.group_by is None else f"groups by {request.group_by}"
    return (
        f"buffer {info.name!r}: asked for {request.n} {asked}, and within {timeout_s:g} s there "
        f"were too few: {lack}; wait longer (timeout_s), ask for fewer, or see v_queue and "
        f"v_leases"
    )


def _rows_by_state(
    connection: Connection, scope: Scope, request: ClaimRequest
) -> Mapping[str, int]:
    """Return the number of rows of the queue by what they are, or by why they cannot be claimed.

    If there are several reasons, a row counts under the first.
    """
    limits = scope.limits
    is_kept = queue_items.c.used_up & ~is_free
    tests: dict[str, Any] = {
        "kept": is_kept, "leased": ~is_free, "used up": queue_items.c.used_up,
    }  # fmt: skip
    if request.group_by == "episode_id":
        tests["in no episode"] = queue_items.c.episode_id.is_(None)
    if request.node != EVERYTHING and request.group_by is None:
        tests["unmatched"] = ~matches(request.node, request.steps)
    for name, limit in (
        ("in quarantine", Eligibility(quarantine=limits.quarantine)),
        ("stale", limits.of_versions),
        ("of another session", Eligibility(session=limits.session)),
    ):
        if limit:
            tests[name] = limit.is_ineligible(queue_items)
    state = case(*((test, name) for name, test in tests.items()), else_="free")
    states = select(state.label("state")).where(in_window).subquery("states").c
    counted: Any = select(states.state, func.count()).group_by(states.state)
    return {name: int(n) for name, n in connection.execute(counted, scope.parameters())}


def _described_rows(rows: Mapping[str, int], settings: SamplingConfig) -> str:
    words = {
        "leased": "leased by others",
        "unmatched": "that do not match the condition",
        **_limit_words(settings),
    }
    parts = [f"{rows.get('free', 0)} rows may be claimed"]
    return ", ".join([*parts, *(f"{rows[name]} {words[name]}" for name in words if name in rows)])


def _limit_words(settings: SamplingConfig) -> dict[str, str]:
    return {
        "kept": "acknowledged, and kept for checkpoints (v_checkpoints)",
        "used up": f"used up (max_use {settings.max_use})",
        "in quarantine": "in quarantine",
        "stale": f"more than {settings.max_staleness} behind the clock (max_staleness)",
        "of another session": "of another session (current_session_only)",
    }


def _described_groups(
    connection: Connection,
    scope: Scope,
    request: ClaimRequest,
    rows: Mapping[str, int],
    settings: SamplingConfig,
) -> str:
    groups_by_state: dict[str, list[Any]] = defaultdict(list)
    for group in connection.execute(states_of_groups(scope.limits, request), scope.parameters()):
        groups_by_state[group.state].append(group)
    is_episode = request.group_by == "episode_id"
    words = {
        "late": "after their group was acknowledged (on_late='drop' deletes them)",
        "leased": "leased by others",
        "unmatched": "without a row that matches the condition",
        **{name: f"with rows {text}" for name, text in _limit_words(settings).items()},
        "few": f"of fewer than {request.group_size} rollouts that may be claimed",
        "open": "open" if is_episode else "with an open episode",
        "unjudged": "with a rollout that has no reward",
        "partly unmatched": "with a rollout that does not match `every`",
        "flat": f"whose rewards differ by {request.min_spread} or less (min_spread)",
        "small": f"of fewer than {request.min_group_size} rollouts",
        "cut": "with steps that were evicted",
    }
    parts = [f"{len(groups_by_state['free'])} groups may be claimed"]
    for state, text in words.items():
        if groups_of_state := groups_by_state[state]:
            sizes = _described_sizes(connection, scope, state, groups_of_state, is_episode)
            parts.append(f"{len(groups_of_state)} {text}{sizes}")
    if not request.includes_incomplete:
        key = GROUPS[request.group_by or "task_id"]
        failed: Any = (
            select(key, func.count(queue_items.c.episode_id.distinct()))
            .where(in_queue, is_of_incomplete)
            .group_by(key)
            .order_by(func.min(queue_items.c.seq))
        )
        if n_failed := {k: int(n) for k, n in connection.execute(failed, scope.parameters())}:
            shown = (
                "" if is_episode else f" ({_listed(f'{k!r}: {n}' for k, n in n_failed.items())})"
            )
            parts.append(
                f"{sum(n_failed.values())} rollouts were aborted or abandoned{shown} "
                f"(incomplete='include')"
            )
    if len(parts) == 1:
        of_rows = {"in no episode": "in no episode", **_limit_words(settings)}
        parts += [f"{rows[name]} rows {text}" for name, text in of_rows.items() if name in rows]
    return ", ".join(parts)


def _described_sizes(
    connection: Connection,
    scope: Scope,
    state: str,
    groups_of_state: Sequence[Any],
    is_episode: bool,
) -> str:
    """Return the first groups with their numbers of rollouts, and what holds each up."""
    keys = [group.key for group in groups_of_state[:SHOWN]]
    names: dict[Any, str] = {}
    if is_episode:
        known: Any = select(episodes.c.id, episodes.c.key).where(episodes.c.id.in_(keys))
        names = dict(connection.execute(known).all())
    sizes = (
        f"{names.get(group.key, group.key)!r}: {group.size}{_detail(scope, state, group)}"
        for group in groups_of_state
    )
    return f" ({_listed(sizes)})"


def _detail(scope: Scope, state: str, group: Any) -> str:
    """Return what holds a group up, in figures."""
    if state == "leased":
        until = group.held_until
        if not isinstance(until, str):
            until = f"{until.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return f" until {until}"
    if state == "open":
        return f" and {group.n_open} open"
    if state == "few":
        open_ones = f", {group.n_open} open" if group.n_open else ""
        unjudged = f", {group.n_unjudged} without a reward" if group.n_unjudged else ""
        return f", of which {group.n_good} may{open_ones}{unjudged}"
    if state == "flat":
        return f", spread {group.spread:g}"
    if state == "unjudged":
        return f", {group.n_unjudged} without a reward"
    if state == "in quarantine":
        n_rows = int(group.n_in_quarantine)
        return f", {n_rows} row{'s' * (n_rows != 1)}"
    oldest_version = scope.limits.oldest_version
    if state == "stale" and oldest_version is not None and group.oldest:
        n_versions = oldest_version - group.oldest
        return f", {n_versions} version{'s' * (n_versions != 1)} too old"
    return ""


def _listed(texts: Iterable[str]) -> str:
    """Return the first of some texts, and dots for further ones."""
    first = list(islice(texts, SHOWN + 1))
    return ", ".join([*first[:SHOWN], "..."] if len(first) > SHOWN else first)
