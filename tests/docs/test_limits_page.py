"""docs/reference/limits.md says what the code refuses."""

from collections.abc import Callable
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import pytest

from sqlbuffer import HindsightGoals, QueryBuilder, RandomSampler, ReplayBuffer, errors
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import (
    BUILT_IN,
    RESERVED,
    RESERVED_META,
    RESERVED_PREFIXES,
    RESERVED_SUFFIXES,
    Fields,
)
from tests.docs import limits_page
from tests.docs.pages import text_of
from tests.support.sql import run

LIMITS = {limit.what: limit for limits in limits_page.LIMITS.values() for limit in limits}
PAGE = text_of(limits_page.PAGE)
RESERVED_PART = PAGE.partition("## How to read")[0]
FIELDS = {"obs": ("float32", (2,)), "goal": ("float32", (2,))}


def test_the_page_is_that_of_the_code() -> None:
    assert limits_page.page() == PAGE, "run `python -m tests.docs.limits_page`"


def test_each_error_of_the_page_is_one_of_the_library() -> None:
    words = {"", "cut", "next chunk", "all rows", "waits", "not live", "stored", "abandoned"}
    others = {limit.error for limit in LIMITS.values() if not hasattr(errors, limit.error)}
    assert others <= words


def _names() -> list[tuple[str, str]]:
    affixed = [f"{start}x" for start in RESERVED_PREFIXES]
    affixed += [f"x{end}" for end in RESERVED_SUFFIXES]
    everywhere = [("specs", name) for name in (*BUILT_IN, *RESERVED, *affixed)]
    return everywhere + [("meta", name) for name in (*BUILT_IN, *RESERVED, *RESERVED_META)]


def _on_page(name: str) -> set[str]:
    """Return the name as the page writes it: whole, or by its beginning or end."""
    starts = {f"{start}..." for start in RESERVED_PREFIXES if name.startswith(start)}
    return {name} | starts | {f"...{end}" for end in RESERVED_SUFFIXES if name.endswith(end)}


@pytest.mark.parametrize(("part", "name"), _names())
def test_each_reserved_name_is_refused_and_is_on_the_page(part: str, name: str) -> None:
    with pytest.raises(FieldError, match=rf"'{name}'") as refusal:
        Fields(**{part: {name: "float32"}})
    if name in BUILT_IN:
        assert "built in" in str(refusal.value)
    else:
        assert "see the page 'Limits and reserved names'" in str(refusal.value)
    assert any(f"`{form}`" in RESERVED_PART for form in _on_page(name))


def test_the_page_has_the_title_that_errors_name() -> None:
    assert PAGE.startswith("# Limits and reserved names\n")


def test_the_entry_of_field_error_leads_to_the_reserved_names() -> None:
    entry = text_of("docs/reference/errors.md").partition("\n## FieldError\n")[2]
    assert "(limits.md)" in entry.partition("\n## ")[0]


@pytest.mark.parametrize("name", ["seq", "obs_lens", "_own"])
def test_a_field_that_is_added_later_has_the_same_reserved_names(schema_url: str, name: str):
    with (
        ReplayBuffer(schema_url, fields=FIELDS) as buffer,
        pytest.raises(FieldError, match="the name is reserved"),
    ):
        buffer.add_field(name, ("float32", (), 0.0))


def _nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


_LEAF = {"field": "step", "op": "eq", "value": 1}


def _condition(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = _LEAF
    for _ in range(depth):
        node = {"nested": node}
    return node


def _path(segments: int) -> str:
    return ".".join(["state", *["a"] * segments])


class Place(NamedTuple):
    """A buffer without typed fields, and its database."""

    buffer: ReplayBuffer
    url: str


def _add_ids(place: Place, n: int) -> None:
    place.buffer.add(id="i" * n)
    place.buffer.add(task_id="t" * n, agent_id="\N{LATIN SMALL LETTER E WITH ACUTE}" * (n // 2))
    place.buffer.add(episode_id="e" * n, group_id="g" * n, parent_id="p" * n, session_id="s" * n)


def _add_names(place: Place, n: int) -> None:
    place.buffer.add(task_name="n" * n, pre_agent="a" * n)
    place.buffer.quarantine([1], reason="r" * n)


# What each does with n is accepted, and with n + 1 refused.
CALLS: dict[str, Callable[[Place, int], object]] = {
    "name of a buffer": lambda place, n: ReplayBuffer(place.url, "b" * n).close(),
    "name of a field": lambda place, n: Fields(specs={"f" * n: "int8"}),
    "`id`, `task_id`, `agent_id`, `group_id`, `parent_id`, `session_id`, and the `episode_id` of "
    "rows": _add_ids,
    "`episode_id` of `episode` and `store_episode`": lambda place, n: place.buffer.store_episode(
        {"reward": np.ones(2)}, task_id="t", episode_id="e" * n
    ),
    "`group_id` of handed out work": lambda place, n: place.buffer.work.put(
        [{"task_id": "t", "group_id": "g" * n}]
    ),
    "key of a document": lambda place, n: place.buffer.documents.put("k" * n, 1),
    "`task_name`, `pre_agent`, `reason` of a quarantine": _add_names,
    "`step`, `model_version`, integers of JSON": lambda place, n: place.buffer.add(
        step=n, model_version=n
    ),
    "`max_use`": lambda place, n: ReplayBuffer(place.url, "uses", max_use=n).close(),
    "`seed`": lambda place, n: RandomSampler(seed=n),
    "levels of JSON below the first": lambda place, n: place.buffer.add(state=_nested(n + 1)),
    "value of a document": lambda place, n: place.buffer.documents.put("text", "v" * (n - 2)),
    "`task_ids`, `episode_ids`, `ids`": lambda place, n: place.buffer.get_by_ids(repeat("i", n)),
    "keys of documents": lambda place, n: place.buffer.documents.get_many(repeat("k", n)),
    "`n` of `work.take`": lambda place, n: place.buffer.work.take(n),
    "levels of a condition": lambda place, n: place.buffer.size(_condition(n)),
    "values of one list": lambda place, n: QueryBuilder().in_("step", repeat(1, n)),
    "segments of a path": lambda place, n: place.buffer.size({**_LEAF, "field": _path(n)}),
    "list indexes of a path": lambda place, n: place.buffer.size(
        {**_LEAF, "field": "state.a" + "[0]" * n}
    ),
    "`n_sampled_goal`": lambda place, n: HindsightGoals(reward_fn=_reward, n_sampled_goal=n),
    "`window_s` of `stats` and `flow`": lambda place, n: place.buffer.stats(n),
    "settings and arguments in seconds": lambda place, n: place.buffer.lease(1, lease_s=n),
}


def _reward(achieved: Any, desired: Any, infos: Any) -> Any:
    return (achieved == desired).all(axis=-1) - 1.0


@pytest.mark.slow
def test_a_limit_holds_and_one_more_is_refused(schema_url: str) -> None:
    with ReplayBuffer(schema_url, leases=True) as buffer:
        place = Place(buffer, schema_url)
        for what, call in CALLS.items():
            limit = LIMITS[what]
            call(place, int(limit.value))
            with pytest.raises(getattr(errors, limit.error)):
                call(place, int(limit.value) + 1)


@pytest.mark.parametrize("kind", ["payloads", "fields"])
def test_the_payload_of_a_row_has_at_most_max_row_bytes(schema_url: str, kind: str) -> None:
    fields = {"data": ("uint8", (-1,))} if kind == "fields" else None
    with ReplayBuffer(schema_url, kind, max_row_bytes=1_000, fields=fields) as buffer:
        for n in (500, 2_000):
            values = {"data": np.zeros(n, np.uint8)} if fields else {"state": {"text": "x" * n}}
            if n < 1_000:
                buffer.add(**values)
                continue
            with pytest.raises(FieldError, match="max_row_bytes"):
                buffer.add(**values)
        assert buffer.size() == 1


def test_a_chunk_has_at_most_so_many_steps(schema_url: str) -> None:
    most = LIMITS["steps of a chunk"].value
    with ReplayBuffer(schema_url, fields={"obs": "int8"}) as buffer:
        buffer.extend({"obs": np.zeros(2 * most + 1, np.int8)}, task_id="t")
    assert run(schema_url, "SELECT n_steps FROM chunks ORDER BY first_seq") == [
        (most,), (most,), (1,),
    ]  # fmt: skip
