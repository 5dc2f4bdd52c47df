"""Inserts chunks on SQLite."""

from collections.abc import Sequence

from sqlalchemy import Connection

from sqlbuffer.storage.chunks.numbered_chunk import (
    NumberedChunk,
    fields_json,
    payloads_json,
    values_json,
)

_COLUMNS = (
    "key", "buffer_id", "first_seq", "n_steps", "id", "task_id", "task_name", "agent_id",
    "pre_agent", "episode_id", "t", "step", "steps", "session_id", "model_version", "first_time",
    "last_time", "reward_t", "adv_t", "v_t", "terminated", "truncated", "initial_priority",
    "fields",
)  # fmt: skip
_DATA = (
    "key", "buffer_id", "first_seq", "records", "block_steps", "offsets", "payloads",
    "payload_arrays",
)  # fmt: skip
_INSERT = f"INSERT INTO chunks ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_INSERT_DATA = f"INSERT INTO chunk_data ({', '.join(_DATA)}) VALUES ({', '.join('?' * len(_DATA))})"


def insert_chunks(
    connection: Connection, buffer_id: int, numbered: Sequence[NumberedChunk]
) -> None:
    """Write chunks under their numbers."""
    rows, data = [], []
    for own in numbered:
        chunk, key = own.chunk, buffer_id << 40 | own.first_seq
        rows.append(
            (
                key, buffer_id, own.first_seq, chunk.n_steps, chunk.id, chunk.task_id,
                chunk.task_name, chunk.agent_id, chunk.pre_agent, own.episode_id, chunk.t,
                chunk.step, values_json(chunk.steps), own.session_id, chunk.model_version,
                chunk.first_time, chunk.last_time, values_json(chunk.reward),
                values_json(chunk.adv_t), values_json(chunk.v_t), values_json(chunk.terminated),
                values_json(chunk.truncated), values_json(own.initial_priority),
                fields_json(chunk.fields),
            )
        )  # fmt: skip
        data.append(
            (
                key, buffer_id, own.first_seq, chunk.records, chunk.block_steps,
                values_json(chunk.offsets), payloads_json(chunk.payloads), chunk.payload_arrays,
            )
        )  # fmt: skip
    connection.exec_driver_sql(_INSERT, rows)
    connection.exec_driver_sql(_INSERT_DATA, data)
