"""The views for analysts and their columns, in words. Tests compare them with both databases.

`python -m sqlbuffer.storage.schema.views` prints the comments on views and columns for a migration
of PostgreSQL, where `\\d+` in psql shows them.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sqlbuffer.storage.schema.metadata import whole_metadata

Kind = Literal["text", "integer", "real", "boolean", "time", "JSON"]


@dataclass(frozen=True)
class View:
    """A view.

    Attributes:
        text: Description of a row.
        columns: Column -> (kind, description), in order.
    """

    text: str
    columns: dict[str, tuple[Kind, str]]


_BUFFER: tuple[Kind, str] = ("text", "name of the buffer")
_TIMES: dict[str, tuple[Kind, str]] = {
    "first_at": ("time", "earliest `executed_at`"),
    "last_at": ("time", "latest `executed_at`"),
}
_REWARDS: dict[str, tuple[Kind, str]] = {
    "total_reward": ("real", "sum of the rewards"),
    "mean_reward": ("real", "mean reward of a step"),
}

VIEWS = {
    "v_experiences": View(
        "One row per step.",
        {
            "buffer": _BUFFER,
            "seq": ("integer", "insert order within the buffer"),
            "first_seq": (
                "integer",
                "`seq` of the first step in the same chunk, at most 255 below its own",
            ),
            "id": ("text", "id of the step, unique within the buffer; null for plain SQL inserts"),
            "task_id": ("text", "the task"),
            "task_name": ("text", "readable name of the task"),
            "agent_id": ("text", "the agent"),
            "pre_agent": ("text", "the agent that acted before"),
            "episode_id": ("text", "the rollout of the task"),
            "step": ("integer", "step within the task"),
            "executed_at": ("time", "when the step was taken, by the agent's clock"),
            "execute_time": ("real", "`executed_at` in seconds since 1970"),
            "inserted_at": ("time", "when the row was written, by the database's clock"),
            "reward": (
                "real",
                "reward of the step; the latest annotation counts",
            ),
            "advantage": ("real", "advantage"),
            "value": ("real", "value estimate"),
            "terminated": ("boolean", "the step ended the episode in a terminal state"),
            "truncated": ("boolean", "the episode was cut after the step"),
            "model_version": ("integer", "version of the model that acted"),
            "session_id": ("text", "the training session"),
            "state": ("JSON", "the observation"),
            "actions": ("JSON", "the actions"),
            "messages": ("JSON", "conversation of an LLM agent"),
            "extra": ("JSON", "other values"),
            "fields": (
                "JSON",
                "declared fields that conditions can use, and those that were annotated",
            ),
            "special_numbers": (
                "JSON",
                "NaN, which is null in its own column, and -0.0; by the column names of "
                "`experiences`",
            ),
            "attempt": (
                "integer",
                "number of the writer of the episode that stored it: 1, and one more with each "
                "that continued it; null: it had no writer",
            ),
            "group_id": ("text", "the group of rollouts that its episode belongs to"),
            "t": ("integer", "place in its episode: 0, 1, 2 and so on; null without an episode"),
            "parent_id": ("text", "the episode that its episode came from"),
        },
    ),
    "v_tasks": View(
        "One row per task.",
        {
            "buffer": _BUFFER,
            "task_id": ("text", "the task"),
            "task_name": ("text", "readable name of the task"),
            "steps": ("integer", "rows in the buffer"),
            "agents": ("integer", "agents that took part"),
            **_TIMES,
            **_REWARDS,
        },
    ),
    "v_agents": View(
        "One row per agent.",
        {
            "buffer": _BUFFER,
            "agent_id": ("text", "the agent"),
            "steps": ("integer", "rows in the buffer"),
            "tasks": ("integer", "tasks it took part in"),
            **_TIMES,
            **_REWARDS,
        },
    ),
    "v_groups": View(
        "One row per group: how the rewards of its rollouts differ. Every write keeps it up to "
        "date. A rollout is an episode, also one whose steps have left. Its reward is that of the "
        "episode itself, or else the sum of its steps' rewards. Steps without an episode are one "
        "rollout of their task, unless the task has episodes.",
        {
            "buffer": _BUFFER,
            "task_id": ("text", "the task; of a group of several tasks one of them"),
            "group_id": ("text", "the group; the task where its episodes name none"),
            "rollouts": ("integer", "rollouts without aborted ones"),
            "steps": ("integer", "steps written, also those that have left"),
            "return_mean": ("real", "mean reward of these rollouts, without infinite ones"),
            "return_min": ("real", "least reward"),
            "return_max": ("real", "greatest reward"),
            "return_spread": (
                "real",
                "greatest less least reward; null while a rollout has no reward",
            ),
            "return_variance": ("real", "variance of the rewards (of the population)"),
            "incomplete": ("integer", "aborted and abandoned rollouts"),
            "late": (
                "integer",
                "rollouts held that arrived after a lease of the group was acknowledged",
            ),
        },
    ),
    "v_episodes": View(
        "One row per episode; it stays when the steps are evicted.",
        {
            "buffer": _BUFFER,
            "episode_id": ("text", "id of the episode, unique within buffer and task"),
            "task_id": ("text", "the task"),
            "agent_id": ("text", "the agent"),
            "group_id": ("text", "the group of rollouts that it belongs to; null: its task"),
            "parent_id": ("text", "id of the episode that it came from, if it was given"),
            "status": (
                "text",
                "`open`, `complete`, `aborted` (an error in the middle), or `abandoned`: open, and "
                "no step written for the buffer's `open_timeout_s`",
            ),
            "length": ("integer", "steps; null while it is open"),
            "episode_return": (
                "real",
                "sum of the rewards; null while it is open or without rewards",
            ),
            "reward": ("real", "reward of the episode itself, if it was given one"),
            "episode_reward": ("real", "`reward`, or else `episode_return`"),
            "first_seq": ("integer", "`seq` of the first step"),
            "last_seq": ("integer", "`seq` of the last step"),
            "model_version": ("integer", "version of the model at the start"),
            "meta": ("JSON", "values that were stored with the episode"),
            "started_at": ("time", "when its first step was written"),
            "ended_at": ("time", "when its end was written"),
            "attempt": (
                "integer",
                "number of the writer that owns it; null: its last step ends it",
            ),
        },
    ),
    "v_buffers": View(
        "One row per buffer.",
        {
            "buffer": _BUFFER,
            "buffer_id": ("integer", "key of the buffer in the tables"),
            "rows": ("integer", "rows in the buffer"),
            "capacity": ("integer", "largest number of rows; null is unlimited"),
            "fill": ("real", "`rows / capacity`; null where unlimited"),
            "evict_by": ("text", "unit of eviction: `row`, `task` or `episode`"),
            "max_age_s": ("real", "largest age of a step, in seconds; null is unlimited"),
            "max_bytes": ("integer", "largest number of bytes of payloads; null is unlimited"),
            "oldest_at": ("time", "earliest `executed_at`"),
            "newest_at": ("time", "latest `executed_at`"),
            "last_insert_at": ("time", "when the last row was written"),
            "created_at": ("time", "when the buffer was created"),
            "expired": (
                "integer",
                "rows that were deleted because they were too stale: more than `max_staleness` "
                "versions behind the clock",
            ),
            "used_up": ("integer", "rows that were deleted after `max_use` uses"),
            "other_session": (
                "integer",
                "rows that were deleted because of another session",
            ),
            "partial": (
                "integer",
                "rows that were deleted because their group stayed incomplete, or they came late",
            ),
            "flat": (
                "integer",
                "rows that were deleted because the rewards of their group differed too little",
            ),
            "leased": ("integer", "rows that are leased now: see `v_leases`"),
            "quarantined": ("integer", "rows in quarantine"),
            "clock": ("integer", "the learner's iteration or model version"),
            "max_staleness": (
                "integer",
                "rows further behind the clock are not sampled; null: no limit",
            ),
            "max_use": ("integer", "how often a row can be sampled; null: no limit"),
            "min_size": ("integer", "sampling starts at this number of rows"),
            "alpha": ("real", "exponent of the priorities; null: the buffer has no priorities"),
        },
    ),
    "v_fields": View(
        "One row per typed field of a buffer.",
        {
            "buffer": _BUFFER,
            "field": ("text", "name of the field"),
            "level": ("text", "`step`, or `episode` for a meta field"),
            "position": ("integer", "position among the fields of its level, from 1"),
            "dtype": ("text", "its numpy dtype: `float32`, `int64`, `bool`, `U16`"),
            "shape": ("JSON", "lengths of a value: `[]` is a scalar; -1 is a varying length"),
            "comparable": ("boolean", "conditions can use it (`column=True`)"),
        },
    ),
    "v_priorities": View(
        "One row per step of a buffer with priorities.",
        {
            "buffer": _BUFFER,
            "seq": ("integer", "insert order within the buffer"),
            "id": ("text", "id of the row, unique within the buffer; null for plain SQL inserts"),
            "task_id": ("text", "the task"),
            "step": ("integer", "step within the task"),
            "priority": ("real", "current priority"),
            "initial_priority": ("real", "priority at its insertion"),
            "updated": ("boolean", "the priority was set later"),
        },
    ),
    "v_flow": View(
        "One row per buffer: how collectors and learners keep pace (see the page on pacing).",
        {
            "buffer": _BUFFER,
            "policy": ("text", "`RateLimiter` or `RatioWindow`; null: no limiter"),
            "inserted": (
                "integer",
                "rows inserted since the policy was set, deleted ones included",
            ),
            "sampled": ("integer", "rows sampled since the policy was set"),
            "ratio": ("real", "`sampled / inserted`"),
            "may_insert": (
                "boolean",
                "a row may be inserted now; null for a `RatioWindow`: see `buffer.flow()`",
            ),
            "may_sample": ("boolean", "a row may be sampled now; null for a `RatioWindow`"),
            "inserts_waiting": ("integer", "calls that wait to insert and reported lately"),
            "samples_waiting": ("integer", "calls that wait to sample and reported lately"),
        },
    ),
    "v_waiting": View(
        "One row per call that waits for a rate limiter.",
        {
            "buffer": _BUFFER,
            "role": ("text", "the call waits to `insert` or to `sample`"),
            "rows": ("integer", "number of rows of the call"),
            "host": ("text", "its machine"),
            "pid": ("integer", "its process on the machine"),
            "waiting_since": ("time", "when the call began to wait"),
            "alive": ("boolean", "it reported in the last 5 seconds"),
        },
    ),
    "v_samples": View(
        "One row per row of a sampled batch, in buffers with `track_samples`: the rows that a "
        "learner trained on, and when.",
        {
            "buffer": _BUFFER,
            "batch_id": ("integer", "number of the batch, as in the batch's `info`"),
            "clock": ("integer", "the learner's iteration or model version at that time"),
            "sampler": ("text", "the sampler"),
            "seed": ("text", "the sampler's seed"),
            "sampled_at": ("time", "when the batch was drawn"),
            "position": ("integer", "position in the batch, from 1"),
            "seq": ("integer", "the row; the first row of a transition, window or episode"),
            "probability": ("real", "its probability, if the sampler reports it"),
            "id": ("text", "id of the row; this and the next three are null after its eviction"),
            "task_id": ("text", "the task"),
            "episode_id": ("text", "the rollout of the task"),
            "step": ("integer", "step within the task"),
            "model_version": ("integer", "version of the model that acted; it stays"),
            "consumer": ("text", "who leased the batch, where a name was given"),
            "undone": ("boolean", "the consumer went back to an earlier checkpoint"),
            "staleness": (
                "integer",
                "`clock - model_version`: how many versions old the row was when it was drawn",
            ),
        },
    ),
    "v_batches": View(
        "One row per sampled batch, in buffers with `track_samples`: how stale its rows were.",
        {
            "buffer": _BUFFER,
            "batch_id": ("integer", "number of the batch, as in `v_samples`"),
            "clock": ("integer", "the learner's iteration or model version at that time"),
            "sampler": ("text", "the sampler"),
            "seed": ("text", "the sampler's seed"),
            "sampled_at": ("time", "when the batch was drawn"),
            "rows": ("integer", "rows of the batch"),
            "mean_staleness": (
                "real",
                "mean of `clock - model_version` over the rows that have a model version",
            ),
            "max_staleness": ("integer", "the greatest of them"),
            "consumer": ("text", "who leased the batch, where a name was given"),
            "undone": ("boolean", "the consumer went back to an earlier checkpoint"),
        },
    ),
    "v_storage": View(
        "One row per buffer and kind of data: the bytes that it takes in the database.",
        {
            "buffer": _BUFFER,
            "kind": (
                "text",
                "`rows` (steps without typed fields), `chunks` (numbers of typed steps), "
                "`payloads` (typed fields, JSON of typed steps, shared messages, parts of large "
                "rows), or `indexes`",
            ),
            "entries": ("integer", "rows in the tables of this kind"),
            "bytes": (
                "integer",
                "size of the tables on PostgreSQL, and of the values on SQLite",
            ),
            "approximate": (
                "boolean",
                "`bytes` is computed from 150 entries: on SQLite, and on PostgreSQL where buffers "
                "share a table",
            ),
        },
    ),
    "v_sessions": View(
        "One row per training session.",
        {
            "buffer": _BUFFER,
            "session_id": ("text", "the session"),
            "model_version": ("integer", "version of its model; null: not set"),
            "current": ("boolean", "it is the current session of the buffer"),
        },
    ),
    "v_documents": View(
        "One row per document of a buffer: a JSON value by key.",
        {
            "buffer": _BUFFER,
            "key": ("text", "name of the document"),
            "value": ("JSON", "its value"),
            "version": ("integer", "1, and one more with each change"),
            "changed_at": ("time", "when it was written last"),
        },
    ),
    "v_evictions": View(
        "One row per hour and reason for which steps left a buffer, for a year. A process that "
        "writes counts those that left for `capacity` every ten seconds, and `expire` at once. It "
        "counts each `seq` that the window has passed: also those of steps that were deleted "
        "before, and those that no step ever had. Deletions by plain SQL are not counted.",
        {
            "buffer": _BUFFER,
            "hour": ("time", "the hour in which they were counted, by the database's clock"),
            "reason": (
                "text",
                "`capacity`, `age`, `bytes`, `deleted`, `expired` (too stale), `used_up` "
                "(`max_use`), `other_session`, `partial` (incomplete groups, late rows), or `flat` "
                "(`min_spread`)",
            ),
            "steps": ("integer", "number of steps"),
        },
    ),
    "v_quarantine": View(
        "One row per step in quarantine: the buffer keeps it and does not sample it.",
        {
            "buffer": _BUFFER,
            "seq": ("integer", "insert order within the buffer"),
            "id": ("text", "id of the row, unique within the buffer; null for plain SQL inserts"),
            "task_id": ("text", "the task"),
            "step": ("integer", "step within the task"),
            "reason": ("text", "the given reason"),
            "quarantined_at": ("time", "when it was put in quarantine, by the database's clock"),
        },
    ),
    "v_leases": View(
        "One row per leased batch, until it is acknowledged or given back; those that are kept "
        "for checkpoints stay until the oldest checkpoint includes them.",
        {
            "buffer": _BUFFER,
            "lease_id": ("text", "the lease"),
            "rows": ("integer", "rows claimed"),
            "claimed_at": ("time", "when it was claimed, or last renewed"),
            "leased_until": (
                "time",
                "when it ends, by the database's clock; null if it is kept",
            ),
            "alive": (
                "boolean",
                "it has not ended; otherwise other trainers may claim its rows, or have used them",
            ),
            "consumer": ("text", "who leased it, where a name was given"),
            "batch_id": ("integer", "number of the batch in `v_samples`"),
            "kept": ("boolean", "it was acknowledged, and is kept for checkpoints"),
            "checkpoint": ("text", "the first checkpoint after it was acknowledged"),
        },
    ),
    "v_checkpoints": View(
        "One row per checkpoint of a consumer that is kept.",
        {
            "buffer": _BUFFER,
            "consumer": ("text", "whose it is"),
            "checkpoint": ("text", "its name"),
            "created_at": ("time", "when it was made, by the database's clock"),
            "leases": ("integer", "kept batches, acknowledged since the checkpoint before"),
            "rows": ("integer", "their rows"),
        },
    ),
    "v_work": View(
        "One row per work item: a rollout to play, or one that was played.",
        {
            "buffer": _BUFFER,
            "group_id": ("text", "the group of rollouts"),
            "sibling": ("integer", "number of the rollout in its group, from 0"),
            "task_id": ("text", "the task"),
            "status": (
                "text",
                "`waiting`, `taken`, `done` (its episode is complete), or `failed` (it is not "
                "given out again)",
            ),
            "attempt": ("integer", "how often it was taken"),
            "max_attempts": ("integer", "largest number of attempts; null: any number"),
            "worker": ("text", "who has taken it last"),
            "leased_until": ("time", "when the lease of that worker runs out; null unless taken"),
            "alive": ("boolean", "it is taken, and the lease has not run out"),
            "reason": ("text", "why the last attempt failed"),
            "episode_id": ("text", "the episode of the last attempt, in `v_episodes`"),
            "consumed": (
                "boolean",
                "an acknowledged lease has used its rollout, or its steps were found to have left",
            ),
            "payload": ("JSON", "what the rollout needs, as it was given"),
            "created_at": ("time", "when it was put"),
            "taken_at": ("time", "when it was taken last"),
            "ended_at": ("time", "when it was done, or failed for good"),
        },
    ),
    "v_queue": View(
        "One row per group with rows that wait to be leased. A rollout is an episode, or a row "
        "without one.",
        {
            "buffer": _BUFFER,
            "task_id": ("text", "the task"),
            "group_id": ("text", "the group; the task where its episodes name none"),
            "rows": ("integer", "rows in the queue"),
            "free": ("integer", "rows that are not leased"),
            "leased": ("integer", "rows that are leased"),
            "uses": ("integer", "acknowledged uses of the rows"),
            "first_at": ("time", "when the oldest row was written"),
            "last_at": ("time", "when the newest row was written"),
            "rollouts": ("integer", "rollouts that are complete"),
            "spread": (
                "real",
                "largest minus smallest reward of these; null if one has no finite reward, and of "
                "typed steps without an episode: see `min_spread`",
            ),
            "reason": (
                "text",
                "what may hold the group up: open, aborted, stale, quarantined, leased or "
                "unjudged rollouts; null for nothing",
            ),
        },
    ),
    "v_labels": View(
        "One row per annotated row and version of `annotate`. The highest version of each value "
        "counts.",
        {
            "buffer": _BUFFER,
            "seq": ("integer", "the row"),
            "id": ("text", "id of the row"),
            "task_id": ("text", "the task"),
            "version": ("integer", "version of the annotation"),
            "reward": ("real", "the annotated reward"),
            "advantage": ("real", "the annotated advantage"),
            "value": ("real", "the annotated value estimate"),
            "extra": ("JSON", "the annotated keys of extra"),
            "fields": ("JSON", "the annotated fields"),
            "labelled_at": ("time", "when it was annotated"),
        },
    ),
    "v_verdicts": View(
        "One row per episode and version of `annotate_episode`. The highest version counts.",
        {
            "buffer": _BUFFER,
            "episode_id": ("text", "the episode"),
            "task_id": ("text", "the task"),
            "version": ("integer", "version of the verdict; 0: the reward before the first one"),
            "reward": ("real", "the reward"),
            "judged_at": ("time", "when it was given"),
        },
    ),
    "v_windows": View(
        "One row per buffer: its rows in `experiences` are those with `low_seq < seq`. Use it in "
        "queries on the tables; the other views apply it.",
        {
            "buffer_id": ("integer", "key of the buffer in the tables"),
            "buffer": _BUFFER,
            "max_capacity": ("integer", "largest number of rows; null is unlimited"),
            "max_episodes": ("integer", "largest number of episodes; null is unlimited"),
            "evict_unit": ("text", "unit of eviction"),
            "deletions": ("integer", "grows with every delete"),
            "live_rows": ("integer", "rows in the buffer, if it evicts by task or episode"),
            "clock": ("integer", "the learner's iteration or model version"),
            "session_id": ("integer", "key of the current session"),
            "has_labels": ("boolean", "rows may have annotations"),
            "has_quarantine": ("boolean", "rows may be in quarantine"),
            "has_deleted": ("boolean", "steps of chunks may have a row in `deleted_steps`"),
            "high_seq": (
                "integer",
                "`seq` of the newest row; with chunks the last `seq` of the newest, deleted or not",
            ),
            "low_seq": ("integer", "rows up to this `seq` are no longer in the buffer"),
            "n_added": ("integer", "typed fields that have been added to the buffer"),
        },
    ),
}

# The columns of new_experiences.
INSERTABLE = (
    "buffer_id", "id", "episode_id", "task_id", "task_name", "agent_id", "pre_agent", "step",
    "execute_time", "state", "actions", "messages", "extra", "reward_t", "adv_t", "v_t",
    "terminated", "truncated", "model_version",
)  # fmt: skip
# Other views are made of them, and one takes inserts.
INNER_VIEWS = {
    "new_experiences": "Insert rows here; see the page on tables.",
    "chunk_steps": "Internal: the steps of chunks, one row per step.",
    "step_numbers": "Internal: the numbers of the steps of a chunk.",
    "retention_bounds": "Internal: numbers up to which steps leave by age and size.",
    "step_sums": "Internal: sums for v_tasks and v_agents.",
    "episode_states": "Internal: the status of episodes.",
}


_MISSING = re.compile(r'no such (?:table|view): ([^\s;]+)|relation "([^"]+)" does not exist')


def nearest_relation(reason: str) -> str | None:
    """Return the view or table whose name is nearest to the one that an error says is missing.

    Example:
        >>> nearest_relation("no such table: v_eviction")
        'v_evictions'
    """
    missing = _MISSING.search(reason)
    if missing is None:
        return None
    name = (missing[1] or missing[2]).rpartition(".")[2].lower()
    near = difflib.get_close_matches(name[:100], [*VIEWS, *whole_metadata().tables], n=1)
    return near[0] if near else None


def comments() -> dict[tuple[str, str | None], str]:
    """Return the comment of each view and column: `{(relation, column): text}`.

    The column is None for the comment of the view itself.

    Example:
        >>> comments()["v_tasks", None], comments()["v_tasks", "steps"]
        ('One row per task.', 'rows in the buffer')
    """
    return dict(_comments())


def _comments() -> Iterator[tuple[tuple[str, str | None], str]]:
    for name, view in VIEWS.items():
        yield (name, None), view.text
        for column, (_, text) in view.columns.items():
            yield (name, column), text
    for name, text in INNER_VIEWS.items():
        yield (name, None), text
    for column in INSERTABLE:
        yield (
            ("new_experiences", column),
            whole_metadata().tables["experiences"].c[column].comment or "",
        )


def statement() -> str:
    """Return one statement that sets all comments: hundreds would be as many round trips."""
    comments_on = (
        f"    COMMENT ON {_kind(column)} {_place(relation, column)} IS {_quoted(text)};\n"
        for (relation, column), text in comments().items()
    )
    first = "-- The descriptions of views and their columns, which `\\d+` in psql shows.\n"
    return f"{first}DO $$ BEGIN\n{''.join(comments_on)}END $$\n"


def _kind(column: str | None) -> str:
    return "VIEW" if column is None else "COLUMN"


def _place(relation: str, column: str | None) -> str:
    return relation if column is None else f'{relation}."{column}"'


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


if __name__ == "__main__":
    print(statement(), end="")
