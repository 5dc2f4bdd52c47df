"""What the views for analysts offer, in words; a test compares it with both databases."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "integer", "real", "boolean", "time", "JSON"]


@dataclass(frozen=True)
class View:
    """A view.

    Attributes:
        text: What one row of it is.
        columns: Column -> (kind, what it holds), in order.
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
        "One row a step.",
        {
            "buffer": _BUFFER,
            "seq": ("integer", "insert order within the buffer"),
            "first_seq": (
                "integer",
                "`seq` of the first step that is stored with it, at most 255 below its own",
            ),
            "id": ("text", "id of the step, unique within the buffer; null for plain SQL inserts"),
            "task_id": ("text", "the task"),
            "task_name": ("text", "readable name of the task"),
            "agent_id": ("text", "the agent"),
            "pre_agent": ("text", "the agent that acted before"),
            "episode_id": ("text", "which rollout of the task"),
            "step": ("integer", "step within the task"),
            "executed_at": ("time", "when the step was taken, by the agent's clock"),
            "execute_time": ("real", "the same in seconds since 1970"),
            "inserted_at": ("time", "when the row was written, by the database's clock"),
            "reward": ("real", "reward of the step; as what else was annotated, what holds now"),
            "advantage": ("real", "advantage"),
            "value": ("real", "value estimate"),
            "terminated": ("boolean", "the step ended the episode in a terminal state"),
            "truncated": ("boolean", "the episode was cut after the step"),
            "model_version": ("integer", "version of the model that acted"),
            "session_id": ("text", "the training session"),
            "state": ("JSON", "the observation"),
            "actions": ("JSON", "what was done"),
            "messages": ("JSON", "conversation of an LLM agent"),
            "extra": ("JSON", "anything else"),
            "fields": ("JSON", "declared fields that conditions can use"),
            "special_numbers": (
                "JSON",
                "numbers that their columns do not hold as they were given: NaN, which is null "
                "there, and -0.0; by the columns of `experiences`",
            ),
        },
    ),
    "v_tasks": View(
        "One row a task.",
        {
            "buffer": _BUFFER,
            "task_id": ("text", "the task"),
            "task_name": ("text", "readable name of the task"),
            "steps": ("integer", "rows held"),
            "agents": ("integer", "agents that took part"),
            **_TIMES,
            **_REWARDS,
        },
    ),
    "v_agents": View(
        "One row an agent.",
        {
            "buffer": _BUFFER,
            "agent_id": ("text", "the agent"),
            "steps": ("integer", "rows held"),
            "tasks": ("integer", "tasks it took part in"),
            **_TIMES,
            **_REWARDS,
        },
    ),
    "v_groups": View(
        "One row a task: how the returns of its rollouts differ. A rollout is an episode of the "
        "task, or the whole task where its rows name none; its return is the sum of its rewards.",
        {
            "buffer": _BUFFER,
            "task_id": ("text", "the task"),
            "rollouts": ("integer", "rollouts held"),
            "steps": ("integer", "rows of all of them"),
            "return_mean": ("real", "mean return"),
            "return_min": ("real", "least return"),
            "return_max": ("real", "greatest return"),
            "return_spread": ("real", "greatest less least return"),
            "return_variance": ("real", "variance of the returns (of the population)"),
        },
    ),
    "v_episodes": View(
        "One row an episode; it stays when the steps are evicted.",
        {
            "buffer": _BUFFER,
            "episode_id": ("text", "id of the episode, unique within buffer and task"),
            "task_id": ("text", "the task"),
            "agent_id": ("text", "the agent"),
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
            "reward": ("real", "the episode's own reward, where its end was given one"),
            "first_seq": ("integer", "`seq` of the first step"),
            "last_seq": ("integer", "`seq` of the last step"),
            "model_version": ("integer", "version of the model at its start"),
            "meta": ("JSON", "values given when it was stored"),
            "started_at": ("time", "when its first step was written"),
            "ended_at": ("time", "when its end was written"),
        },
    ),
    "v_buffers": View(
        "One row a buffer.",
        {
            "buffer": _BUFFER,
            "buffer_id": ("integer", "its key in the tables"),
            "rows": ("integer", "rows held"),
            "capacity": ("integer", "rows held at most; null is unlimited"),
            "fill": ("real", "`rows / capacity`; null where unlimited"),
            "evict_by": ("text", "what leaves at once: `row`, `task` or `episode`"),
            "oldest_at": ("time", "earliest `executed_at`"),
            "newest_at": ("time", "latest `executed_at`"),
            "last_insert_at": ("time", "when the last row was written"),
            "created_at": ("time", "when the buffer was created"),
            "expired": ("integer", "rows that left because they were too old"),
            "used_up": ("integer", "rows that left after as many uses as they may have"),
            "other_session": ("integer", "rows that left because they were of another session"),
            "partial": ("integer", "rows that left because their group stayed incomplete"),
            "leased": ("integer", "rows that are out: see `v_leases`"),
            "quarantined": ("integer", "rows held that are in quarantine"),
            "clock": ("integer", "the learner's iteration or model version"),
            "max_staleness": (
                "integer",
                "rows further behind the clock are not sampled; null: all are",
            ),
            "max_use": ("integer", "how often a row is sampled at most; null: any number of times"),
            "min_size": ("integer", "rows there must be before any is sampled"),
            "alpha": ("real", "exponent of the priorities; null: rows have none"),
        },
    ),
    "v_fields": View(
        "One row a typed field that a buffer declares.",
        {
            "buffer": _BUFFER,
            "field": ("text", "name of the field"),
            "level": ("text", "`step`, or `episode` for a meta field"),
            "position": ("integer", "place among the fields of its level, from 1"),
            "dtype": ("text", "its numpy dtype: `float32`, `int64`, `bool`, `U16`"),
            "shape": ("JSON", "lengths of a value: `[]` is a scalar; -1 is a length that varies"),
            "comparable": ("boolean", "conditions can use it (`column=True`)"),
        },
    ),
    "v_priorities": View(
        "One row a step of a buffer with priorities.",
        {
            "buffer": _BUFFER,
            "seq": ("integer", "insert order within the buffer"),
            "id": ("text", "id of the row, unique within the buffer; null for plain SQL inserts"),
            "task_id": ("text", "the task"),
            "step": ("integer", "step within the task"),
            "priority": ("real", "its priority now"),
            "initial_priority": ("real", "the one that it began with"),
            "updated": ("boolean", "it was set since"),
        },
    ),
    "v_flow": View(
        "One row a buffer: how collectors and learners keep pace (see the page on pacing).",
        {
            "buffer": _BUFFER,
            "policy": ("text", "`RateLimiter` or `RatioWindow`; null: nothing limits it"),
            "inserted": (
                "integer",
                "rows inserted since the policy was set, or ever; deletes do not matter",
            ),
            "sampled": ("integer", "rows sampled since then"),
            "ratio": ("real", "`sampled / inserted`"),
            "may_insert": (
                "boolean",
                "one row may be inserted now; null for a `RatioWindow`: `buffer.flow()` says",
            ),
            "may_sample": ("boolean", "one row may be sampled now; likewise"),
            "inserts_waiting": ("integer", "calls that wait to insert, and were heard of lately"),
            "samples_waiting": ("integer", "calls that wait to sample, and were heard of lately"),
        },
    ),
    "v_waiting": View(
        "One row a call that waits for the other side.",
        {
            "buffer": _BUFFER,
            "role": ("text", "what it waits for: `insert` or `sample`"),
            "rows": ("integer", "how many rows it is about"),
            "host": ("text", "its machine"),
            "pid": ("integer", "its process there"),
            "waiting_since": ("time", "since when"),
            "alive": ("boolean", "it was heard of in the last 5 seconds"),
        },
    ),
    "v_samples": View(
        "One row a batch and row of it, of buffers that note what is sampled (`track_samples`): "
        "what a learner trained on, and when.",
        {
            "buffer": _BUFFER,
            "batch_id": ("integer", "number of the batch, as in the batch's `info`"),
            "clock": ("integer", "the learner's iteration or model version then"),
            "sampler": ("text", "what drew it"),
            "seed": ("text", "the sampler's seed"),
            "sampled_at": ("time", "when"),
            "position": ("integer", "place in the batch, from 1"),
            "seq": ("integer", "the row: of transitions, windows and episodes the first one"),
            "probability": ("real", "its probability, where the sampler tells"),
            "id": ("text", "id of the row; null, as what follows, once it has left"),
            "task_id": ("text", "the task"),
            "episode_id": ("text", "which rollout of the task"),
            "step": ("integer", "step within the task"),
        },
    ),
    "v_sessions": View(
        "One row a training session.",
        {
            "buffer": _BUFFER,
            "session_id": ("text", "the session"),
            "model_version": ("integer", "version that its model has; null: none was noted"),
            "current": ("boolean", "it is the buffer's session now"),
        },
    ),
    "v_item_groups": View(
        "One row a group of items that leave together, until their payloads leave: a chunk of "
        "fragments of `compat.minestudio`.",
        {
            "buffer": _BUFFER,
            "number": ("integer", "number in the order of insertion"),
            "task_id": ("text", "the task of its items: the worker that made them"),
            "first_step": ("integer", "`step` of its first item: its `fid_in_worker`"),
            "items": ("integer", "how many it has"),
            "session_id": ("text", "the training session of the first"),
            "model_version": ("integer", "version of the model that made the first"),
            "staleness": ("integer", "by how much the oldest is behind the model now"),
            "use_count": ("integer", "how often it was fetched"),
            "ready": ("boolean", "it may be fetched"),
            "prepared": ("boolean", "a prepared list holds it"),
            "size_bytes": ("integer", "bytes of its payloads"),
            "inserted_at": ("time", "when it was whole"),
        },
    ),
    "v_quarantine": View(
        "One row a step in quarantine: it is kept, and not sampled.",
        {
            "buffer": _BUFFER,
            "seq": ("integer", "insert order within the buffer"),
            "id": ("text", "id of the row, unique within the buffer; null for plain SQL inserts"),
            "task_id": ("text", "the task"),
            "step": ("integer", "step within the task"),
            "reason": ("text", "why, as it was given"),
            "quarantined_at": ("time", "since when"),
        },
    ),
    "v_leases": View(
        "One row a batch that is leased, until it is acknowledged or given back.",
        {
            "buffer": _BUFFER,
            "lease_id": ("text", "the lease"),
            "rows": ("integer", "rows claimed"),
            "claimed_at": ("time", "when it was claimed, or last renewed"),
            "leased_until": ("time", "when it runs out, by the database's clock"),
            "alive": ("boolean", "it has not run out; else its rows are free again"),
        },
    ),
    "v_queue": View(
        "One row a task of a buffer that leases: what there is to claim.",
        {
            "buffer": _BUFFER,
            "task_id": ("text", "the task"),
            "rows": ("integer", "rows in the queue"),
            "free": ("integer", "of them, those that are not leased"),
            "leased": ("integer", "and those that are out"),
            "uses": ("integer", "acknowledged uses of these rows"),
            "first_at": ("time", "when the oldest of them was written"),
            "last_at": ("time", "when the newest was"),
        },
    ),
    "v_labels": View(
        "One row a row of the buffer and version of what `annotate` said of it: of each "
        "value the highest version holds.",
        {
            "buffer": _BUFFER,
            "seq": ("integer", "the row"),
            "id": ("text", "id of the row"),
            "task_id": ("text", "the task"),
            "version": ("integer", "version of the annotation"),
            "reward": ("real", "the reward it gave"),
            "advantage": ("real", "the advantage it gave"),
            "value": ("real", "the value estimate it gave"),
            "extra": ("JSON", "the keys of extra it gave"),
            "labelled_at": ("time", "when"),
        },
    ),
    "v_slots": View(
        "One row a slot that shows an episode, of buffers of `compat.memmap`; `v_experiences` has "
        "its steps by `episode_id`.",
        {
            "buffer": _BUFFER,
            "slot": ("integer", "its number"),
            "episode_id": (
                "text",
                "the episode that it shows; null where a length was set and nothing stored",
            ),
            "length": ("integer", "steps; null while it is written"),
            "open": ("boolean", "it is being written"),
            "meta": ("JSON", "values of its meta fields, without large ones"),
        },
    ),
    "v_windows": View(
        "One row a buffer: which rows of `experiences` it is, those with `low_seq < seq`. For "
        "queries on the tables; the other views apply it.",
        {
            "buffer_id": ("integer", "key of the buffer in the tables"),
            "buffer": _BUFFER,
            "max_capacity": ("integer", "rows held at most; null is unlimited"),
            "max_episodes": ("integer", "episodes held at most; null is unlimited"),
            "evict_unit": ("text", "what leaves at once"),
            "deletions": ("integer", "grows with every delete"),
            "live_rows": ("integer", "rows held, where eviction is by task or episode"),
            "clock": ("integer", "the learner's iteration or model version"),
            "session_id": ("integer", "key of the session now"),
            "has_labels": ("boolean", "rows may have been annotated"),
            "has_quarantine": ("boolean", "rows may be in quarantine"),
            "high_seq": (
                "integer",
                "the newest row's `seq`; of typed steps the newest chunk's last, deleted or not",
            ),
            "low_seq": ("integer", "rows up to this `seq` have left"),
        },
    ),
}
