"""Write docs/reference/limits.md from the constants: `python -m tests.docs.limits_page`."""

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlbuffer import errors
from sqlbuffer.config import DEFAULT_CONFIG, DEFAULT_CONNECTION, PLACES
from sqlbuffer.fields import (
    BUILT_IN,
    NEXT,
    RESERVED,
    RESERVED_META,
    RESERVED_PREFIXES,
    RESERVED_SUFFIXES,
)
from tests.support.markdown import ROOT

PAGE = "docs/reference/limits.md"
INTRO = """# Limits and reserved names

## Reserved names of fields

`fields`, `meta_fields` and `add_field` refuse these names with a
[FieldError](errors.md#fielderror):

"""
LIMITS_INTRO = """
Other names are those of Python: letters, digits and `_`, and no keyword such as `lambda`. A name
cannot be in `fields` and in `meta_fields`. `add_field` also refuses `{next}` with the name of an
observation behind it: transitions would read it as the observation after a step.

## How to read the limits

A value at a limit is accepted, and a larger one is refused with the error. Bytes of texts are those
of UTF-8. A limit is a constant in `sqlbuffer/`. A setting or an argument has this default.
"""


@dataclass(frozen=True)
class Limit:
    """A line of the page.

    Attributes:
        what: The limited thing.
        source: Where the value is set: a constant of the package as `module.NAME`, with the key of
            a dict in brackets; or `setting NAME`.
        unit: Unit of the value.
        error: Class of the error, or what happens in place of one.
        less: Number by which the limit is below the constant.
        argument: The argument that changes the value.
    """

    what: str
    source: str
    unit: str = ""
    error: str = ""
    less: int = 0
    argument: str = ""

    @property
    def value(self) -> Any:
        """The largest value that is accepted."""
        if self.source.startswith("setting "):
            name = self.source.removeprefix("setting ")
            stored = name in PLACES
            return DEFAULT_CONFIG.settings()[name] if stored else getattr(DEFAULT_CONNECTION, name)
        path, _, key = self.source.rstrip("]").partition("[")
        module, _, name = path.rpartition(".")
        constant = getattr(importlib.import_module(f"sqlbuffer.{module}"), name)
        return (constant[key] if key else constant) - self.less

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The cells of the line."""
        return self.what, _shown(self.value, self.unit), self._error, self._place

    @property
    def _error(self) -> str:
        known = hasattr(errors, self.error)
        return f"[{self.error}](errors.md#{self.error.lower()})" if known else self.error

    @property
    def _place(self) -> str:
        if self.source.startswith("setting "):
            return f"[setting](settings.md) `{self.source.removeprefix('setting ')}`"
        changed = f"argument `{self.argument}`, " if self.argument else ""
        return f"{changed}`{self.source}`"


FIELD, ARGUMENT, CONDITION = "FieldError", "ArgumentError", "ConditionError"
LIMITS = {
    "Names and ids": [
        Limit("name of a buffer", "arguments.MAX_NAME", "characters", ARGUMENT),
        Limit("name of a field", "fields.MAX_NAME", "characters", FIELD),
        Limit(
            "`id`, `task_id`, `agent_id`, `group_id`, `parent_id`, `session_id`, and the "
            "`episode_id` of rows",
            "encoding.records.MAX_KEY_BYTES", "bytes", FIELD,
        ),
        Limit(
            "`episode_id` of `episode` and `store_episode`",
            "front.writing.MAX_EPISODE", "bytes", FIELD,
        ),
        Limit("`group_id` of handed out work", "front.work.MAX_GROUP", "bytes", FIELD),
        Limit("key of a document", "encoding.records.MAX_KEY_BYTES", "bytes", FIELD),
        Limit("name of a checkpoint", "encoding.records.MAX_KEY_BYTES", "bytes", FIELD),
        Limit(
            "`task_name`, `pre_agent`, `reason` of a quarantine",
            "encoding.records.MAX_NAME_BYTES", "bytes", FIELD,
        ),
        Limit("`reason` of `fail`", "front.work.MAX_REASON", "characters", "cut"),
        Limit("`prefix` of a merge", "copying.MOST_PREFIX", "characters", ARGUMENT),
        Limit("URL", "storage.database.urls.MAX_URL", "characters", "URLError"),
        Limit("path of a file", "checks.MAX_PATH_BYTES", "bytes", ARGUMENT),
    ],
    "Buffers and numbers": [
        Limit(
            "buffers that a database ever makes",
            "storage.schema.number_keys.MOST_BUFFERS", error="BufferConfigError", less=1,
        ),
        Limit(
            "rows that a buffer ever stores",
            "storage.schema.number_keys.MOST_NUMBERS", error="StorageError", less=1,
        ),
        Limit("`step`, `model_version`, integers of JSON", "checks.MAX_INTEGER", error=FIELD),
        Limit("priority", "encoding.priority_values.MOST_PRIORITY", error=FIELD),
        Limit("`max_use`", "config.MAX_USE", error="BufferConfigError"),
        Limit("`seed`", "samplers.MAX_SEED", error=ARGUMENT),
        Limit("`shard`: number of ranks", "loading.ranks.MAX_WORLD", error=ARGUMENT),
        Limit("settings and arguments in seconds", "checks.MAX_SECONDS", "s", ARGUMENT),
    ],
    "Size of a step": [
        Limit("payload of a row", "setting max_row_bytes", "bytes", FIELD),
        Limit(
            "the same in a buffer with typed fields, where `max_row_bytes` is larger",
            "storage.rows.payload_parts.MAX_INLINE_BYTES", "bytes", FIELD,
        ),
        Limit("declared fields of one step", "fields.MAX_ROW_BYTES", "bytes", FIELD),
        Limit(
            "JSON of one of `state`, `actions`, `messages`, `extra`",
            "encoding.records.MAX_JSON_BYTES", "bytes", FIELD,
        ),
        Limit("levels of JSON below the first", "codec.plain_values.MAX_DEPTH", error=FIELD),
        Limit("value of a document", "storage.documents.MAX_BYTES", "bytes", FIELD),
        Limit("steps of a chunk", "encoding.packing.MAX_CHUNK_STEPS", error="next chunk"),
        Limit(
            "bytes of a chunk on SQLite; a larger step is a chunk",
            "storage.buffers.open_buffer.CHUNK_BYTES[sqlite]", "bytes", "next chunk",
        ),
        Limit(
            "the same on PostgreSQL",
            "storage.buffers.open_buffer.CHUNK_BYTES[postgresql]", "bytes", "next chunk",
        ),
    ],
    "Items of one call": [
        Limit(
            "`batch_size` of a draw with replacement",
            "arguments.MOST_REPLACED", "rows", ARGUMENT,
        ),
        Limit("`batch_size` of other draws", "checks.MAX_INTEGER", error="all rows"),
        Limit("`task_ids`, `episode_ids`, `ids`", "arguments.MAX_TASKS", "ids", ARGUMENT),
        Limit(
            "`episode_ids` of `end_episodes`, `annotate_episodes`",
            "front.episode_changes.MAX_EPISODES", "episodes", ARGUMENT,
        ),
        Limit(
            "numbers that a sampler of your own returns",
            "storage.sampling.candidates.MAX_SEQS", "rows", ARGUMENT,
        ),
        Limit("a `range` as values", "fields.MOST_OF_RANGE", "numbers", FIELD),
        Limit("a list of names of fields", "checks.MAX_NAMES", "names", FIELD),
        Limit("keys of documents", "storage.documents.MAX_KEYS", "keys", ARGUMENT),
        Limit("`n_envs` of `vector_writer`", "vector_writer.MAX_ENVS", error=ARGUMENT),
        Limit("`tasks` of `work.put`", "front.work.MOST_TASKS", "tasks", ARGUMENT),
        Limit("its `group_size`", "front.work.MOST_SIBLINGS", "rollouts", ARGUMENT),
        Limit("its `max_attempts`", "front.work.MOST_ATTEMPTS", error=ARGUMENT),
        Limit("`n` of `work.take`", "front.work.MOST_ITEMS", "items", ARGUMENT),
        Limit(
            "loaders and samplers of a checkpoint",
            "front.checkpoints.MOST_STATES", error=ARGUMENT,
        ),
    ],
    "Batches": [
        Limit("`n_step`, `length`, `burn_in`, `stride`", "batches.forms.MOST_STEPS",
              "steps", ARGUMENT),
        Limit("`stack`", "batches.forms.MOST_FRAMES", "frames", FIELD),
        Limit("`n_sampled_goal`", "batches.hindsight.MOST_GOALS", "goals", ARGUMENT),
        Limit("`window_s` of `stats` and `flow`", "storage.flow.HISTORY_S", "s", ARGUMENT),
    ],
    "Conditions": [
        Limit("levels of a condition", "query.tree.MAX_DEPTH", error=CONDITION),
        Limit("conditions joined by one `and_` or `or_`", "query.tree.MAX_CHAIN",
              error=CONDITION),
        Limit("values of one list", "query.builder.MAX_VALUES", error=CONDITION),
        Limit("levels of a value", "query.builder.MAX_VALUE_DEPTH", error=CONDITION),
        Limit("segments of a path", "query.tree.MAX_PATH_SEGMENTS", error=CONDITION),
        Limit("list indexes of a path", "query.tree.MAX_PATH_INDEXES", error=CONDITION),
    ],
    "SQL of users and the web page": [
        Limit(
            "memory of a question of the page on SQLite",
            "storage.database.statement_process.MAX_GROWTH_BYTES", "bytes", "ReadLimitError",
        ),
        Limit("SQL on the page; `sqlbuffer sql` has no limit",
              "web.pages.sql_page.MOST_CHARACTERS", "characters", "SQLBufferError"),
        Limit("time of a question of the page", "storage.browsing.read_pool.TIME_LIMIT_S", "s",
              "ReadLimitError"),
        Limit("answer on the page", "web.pages.sql_page.MOST_ROWS", "rows", "cut"),
        Limit("CSV of the page", "web.pages.sql_page.MOST_CSV_ROWS", "rows", "cut"),
        Limit("time of such a CSV", "web.pages.sql_page.CSV_TIME_S", "s", "ReadLimitError"),
        Limit("time of a report", "web.report.TIME_S", "s", "ReadLimitError"),
        Limit("connections of the page", "storage.browsing.read_pool.MOST_CONNECTIONS",
              error="waits"),
        Limit("wait for one of them", "storage.browsing.read_pool.WAIT_S", "s",
              "StorageBusyError"),
        Limit("condition on the page", "web.filter_bar.MOST_CHARACTERS", "characters",
              CONDITION),
        Limit("parts of the filter of episodes", "web.filter_bar.MOST_PARTS", error=CONDITION),
        Limit("pages that are live", "web.site.MOST_WATCHERS", error="not live"),
    ],
    "Memory and connections of a process": [
        Limit("steps that wait to be stored", "setting max_pending", "steps", "waits"),
        Limit("bytes that wait", "storage.writing.write_queue.MAX_BYTES", "bytes", "waits"),
        Limit("memory of a mirror", "arguments.MIRROR_BYTES", "bytes",
              "MirrorFullError", argument="max_bytes"),
        Limit("connections that stay open", "storage.database.engine.POOL_SIZE"),
        Limit("more of them at a peak, SQLite",
              "storage.database.engine.SPARE_CONNECTIONS[sqlite]", error="waits"),
        Limit("the same, PostgreSQL",
              "storage.database.engine.SPARE_CONNECTIONS[postgresql]", error="waits"),
        Limit("calls of asyncio at the same time", "call_threads.AT_ONCE", error="waits"),
    ],
    "Timeouts": [
        Limit("connect to a server", "storage.database.engine.CONNECT_TIMEOUT_S", "s",
              "StorageUnreachableError"),
        Limit("repeat a call on a server that is away", "setting retry_s", "s",
              "StorageUnreachableError"),
        Limit("wait for the file of SQLite", "storage.database.engine.BUSY_TIMEOUT_S", "s",
              "StorageBusyError"),
        Limit("wait for a lock of PostgreSQL", "storage.database.transactions.LOCK_TIMEOUT_S",
              "s", "StorageBusyError"),
        Limit("statement on PostgreSQL", "storage.database.transactions.STATEMENT_TIMEOUT_S",
              "s", "StorageBusyError"),
        Limit("transaction on PostgreSQL between two statements",
              "storage.database.transactions.IDLE_TIMEOUT_S", "s", "StorageUnreachableError"),
        Limit("wait for another upgrade of the schema",
              "storage.migrations.migrate.LOCK_TIMEOUT_S", "s", "StorageBusyError"),
        Limit("wait for the rate limiter", "setting wait_s", "s", "FlowControlError"),
        Limit("step of `episode` waits to be stored", "setting flush_s", "s", "stored"),
        Limit("`lease` waits for rows", "arguments.LEASE_WAIT_S", "s", "InsufficientDataError",
              argument="timeout_s"),
        Limit("lease of a batch", "arguments.LEASE_S", "s", "LeaseLostError",
              argument="lease_s"),
        Limit("lease of an item of work", "arguments.LEASE_S", "s", "LeaseLostError",
              argument="lease_s"),
        Limit("open episode without a write", "setting open_timeout_s", "s", "abandoned"),
        Limit("draw of a shared mirror waits", "mirror.shared_following.WAIT_S", "s",
              "MirrorBehindError"),
    ],
}  # fmt: skip


def page() -> str:
    """Return the page."""
    parts = [INTRO, *_lines(_grid(("name", "reserved for"), _reserved())), LIMITS_INTRO]
    parts[-1] = LIMITS_INTRO.format(next=NEXT)
    header = ("limit", "value", "error", "set by")
    for heading, limits in LIMITS.items():
        rows = (limit.row for limit in limits)
        parts += [f"\n## {heading}\n\n", *_lines(_grid(header, rows))]
    return "".join(parts)


def _reserved() -> Iterator[tuple[str, str]]:
    yield _code(BUILT_IN), "values of every step, which are built in"
    for user in dict.fromkeys(RESERVED.values()):
        yield _code(name for name, of in RESERVED.items() if of == user), user
    for prefix, user in RESERVED_PREFIXES.items():
        yield f"`{prefix}...`", user
    for suffix, user in RESERVED_SUFFIXES.items():
        yield f"`...{suffix}`", user
    for user in dict.fromkeys(RESERVED_META.values()):
        names = _code(name for name, of in RESERVED_META.items() if of == user)
        yield f"{names} in `meta_fields`", user


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _shown(value: float, unit: str) -> str:
    """Return a number for people; large ones also as a power of two."""
    if value >= 1e18:
        exponent = int(value).bit_length()
        whole = f"2^{exponent} - 1" if value == 2**exponent - 1 else f"{value:g}"
        return f"{whole} {unit}".rstrip()
    number = f"{value:,.10g}" if isinstance(value, float) else f"{value:,}"
    if unit == "bytes" and value >= 2**20 and value % 2**20 in (0, 2**20 - 1):
        return f"{number} bytes ({-(-value // 2**20):,} MiB)"
    return f"{number} {unit}".rstrip()


def _grid(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (header, tuple("---" for _ in header), *rows):
        yield f"| {' | '.join(row)} |"


def _lines(lines: Iterable[str]) -> Iterator[str]:
    return (f"{line}\n" for line in lines)


if __name__ == "__main__":
    (ROOT / PAGE).write_text(page(), encoding="utf-8")
