"""Rows as slices of one step, for batches of arrays from buffers without typed fields."""

import json
import struct
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.encoding.records import decode_reals
from sqlbuffer.storage.chunks.slices import Reach, Slice
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.dialects.arrays import number_array, number_list
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

_REWARD = struct.Struct(">d")
# Without both the row has no place in an episode.
_HAS_PLACE = "x.episode_id IS NOT NULL AND x.t IS NOT NULL"
_OWN = f"""x.seq, x.reward_t, x.terminated, x.truncated,
    CASE WHEN x.extra IS NOT NULL THEN CAST(x.extra AS text) END,
    CASE WHEN {_HAS_PLACE} THEN x.episode_id END, CASE WHEN {_HAS_PLACE} THEN x.t END,
    x.model_version, x.session_id"""
_KEY = f"""SELECT {_OWN}, x.task_id, x.agent_id, x.step,
    e.key, e.length, e.status, e."return", e.reward,
    CASE WHEN x.t + {{within}} >= e.length THEN e.final_arrays END"""
_ON = f"LEFT JOIN episodes e ON e.id = x.episode_id AND {_HAS_PLACE}"
_KEYS = {
    "sqlite": f"""{_KEY.format(within=":within")}
FROM json_each(:seqs) w CROSS JOIN experiences x ON x.key = (:id << {NUMBER_BITS} | w.value) {_ON}
WHERE :stride = 1 OR x.t % :stride = 0""",
    "postgresql": f"""{_KEY.format(within="%(within)s::integer")}
FROM unnest(%(seqs)s::bigint[]) AS w(seq)
CROSS JOIN LATERAL (SELECT * FROM experiences r
    WHERE r.buffer_id = %(id)s::integer AND r.seq = w.seq OFFSET 0) x {_ON}
WHERE %(stride)s = 1 OR mod(x.t, %(stride)s) = 0""",
}
_RANGES = {
    "sqlite": f"""SELECT {_OWN} FROM json_each(:ranges) w
CROSS JOIN experiences x ON x.buffer_id = :id AND x.episode_id = json_extract(w.value, '$[0]')
    AND x.t BETWEEN json_extract(w.value, '$[1]') AND json_extract(w.value, '$[2]')""",
    "postgresql": f"""SELECT {_OWN}
FROM unnest(%(episodes)s::bigint[], %(firsts)s::integer[], %(lasts)s::integer[])
    AS w(episode_id, first_t, last_t)
CROSS JOIN LATERAL (SELECT * FROM experiences r WHERE r.buffer_id = %(id)s::integer
    AND r.episode_id = w.episode_id AND r.t BETWEEN w.first_t AND w.last_t OFFSET 0) x""",
}


def read_keys(
    connection: Connection, buffer_id: int, seqs: Sequence[int], reach: Reach, has_versions: bool
) -> list[tuple[Any, ...]]:
    """Return rows as keys; see `slice_reading.read_keys`."""
    given = {
        "id": buffer_id, "within": reach.final_within, "stride": reach.stride,
        "seqs": _list(connection, seqs),
    }  # fmt: skip
    keys = []
    for row in _run(connection, _KEYS, given):
        one, (task, agent, step), episode = _slice(row), row[9:12], row[12:]
        versions = row[7:9] if has_versions else ()
        of_row = one.seq, task, agent, step
        if reach.is_alone:
            keys.append((*of_row, one.seq, *one[5:], *versions))
        else:
            place = one.t, one.seq, 1, one.episode_id
            keys.append((*of_row, *place, *one[5:], *episode, *versions))
    return keys


def read_ranges(
    connection: Connection,
    buffer_id: int,
    ranges: Sequence[tuple[int, int, int]],
    reach: Reach,
    has_versions: bool,
) -> list[tuple[Any, ...]]:
    """Return the rows of ranges of episodes as slices; see `slice_reading.read_ranges`."""
    given: dict[str, Any] = {"id": buffer_id, "ranges": json.dumps(ranges)}
    if connection.dialect.name == "postgresql":
        names = ("episodes", "firsts", "lasts")
        given |= dict(zip(names, map(number_array, zip(*ranges, strict=True)), strict=True))
        del given["ranges"]
    rows = _run(connection, _RANGES, given)
    return [(*_slice(row), *(row[7:9] if has_versions else ())) for row in rows]


def _slice(row: Sequence[Any]) -> Slice:
    seq, reward, terminated, truncated, extra, episode, t, *_ = row
    if reward is None:
        tags = {} if extra is None or '"$reals"' not in extra else decode_reals(extra)
        reward = tags.get("reward_t", float("nan"))
    is_told = terminated is not None or truncated is not None
    ends = bytes([bool(terminated) | bool(truncated) << 1]) if is_told else None
    return Slice(seq, episode, t, 0, 1, _REWARD.pack(reward), ends, 1, None, b"")


def _list(connection: Connection, seqs: Sequence[int]) -> str:
    is_sqlite = connection.dialect.name == "sqlite"
    return number_list(seqs) if is_sqlite else number_array(seqs)


def _run(
    connection: Connection, texts: dict[str, str], given: dict[str, Any]
) -> list[tuple[Any, ...]]:
    return fetch(connection, texts[connection.dialect.name], given)
