"""`export_rollouts` writes conversations for trainers of language models."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import FieldError, FileImportError
from sqlbuffer.interchange import RolloutRows, export_rollouts, import_parquet
from sqlbuffer.interchange.hugging_face import ROLLOUT_FORMS

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def chats(url: str, fields: Any = None) -> ReplayBuffer:
    buffer = ReplayBuffer(url, "chats", fields=fields)
    step: dict[str, Any] = {"x": 0.5} if fields else {}
    for task, parts in (("text", ()), ("image", (IMAGE,))):
        for reward in (0.0, 1.0):
            with buffer.episode(task, episode_id=f"{task}-{reward:.0f}") as episode:
                content = [{"type": "text", "text": "What is this?"}, *parts]
                question = {"role": "user", "content": content}
                episode.append(
                    messages=[question], actions=[f"It is {reward}."], reward=reward,
                    terminated=True, **step,
                )  # fmt: skip
    return buffer


@pytest.mark.parametrize("fields", [None, {"x": "float32"}])
@pytest.mark.parametrize("form", ROLLOUT_FORMS)
def test_images_are_a_column_of_all_rows(
    buffer_url: str, tmp_path: Path, fields: Any, form: Any
) -> None:
    buffer, out = chats(buffer_url, fields), tmp_path / "out"
    report = export_rollouts(buffer, out, form)
    rows = pq.read_table(out / "train-00000.parquet").to_pylist()
    assert [len(row["images"]) for row in rows] == (
        [0, 1] if form == "preference" else [0, 0, 1, 1]
    )
    assert report.n_rows == len(rows)
    assert rows[-1]["images"] == [{"bytes": b"\x89PNG\r\n\x1a\n", "path": None}]
    prompt = rows[-1]["prompt" if "prompt" in rows[-1] else "messages"]
    assert [part["type"] for part in prompt[0]["content"]] == ["text", "image"]
    assert rows[0]["messages" if "messages" in rows[0] else "prompt"][0]["content"] == [
        {"type": "text", "text": "What is this?"}
    ]
    assert list(RolloutRows(buffer, form)) == [without_none(row) for row in rows]
    for refused in (False, None):
        images = QueryBuilder().eq("task_id", "image" if refused is None else "text").build()
        rows = list(RolloutRows(buffer, form, images, images=refused))
        assert ["images" in row for row in rows] == [refused is None] * len(rows)
    with pytest.raises(FieldError, match=r"'image-.': an image in a message is refused by images="):
        export_rollouts(buffer, out, form, images=False, overwrite=True)


def without_none(value: Any, name: str = "") -> Any:
    """Return a value without the keys of messages that are null."""
    if isinstance(value, dict):
        kept = {key: without_none(item, key) for key, item in value.items()}
        is_message = "role" in value or "type" in value
        return {k: v for k, v in kept.items() if v is not None} if is_message else kept
    return [without_none(item) for item in value] if isinstance(value, list) else value


def test_an_image_that_comes_late_is_an_error_or_begins_the_export_again(
    buffer_url: str, tmp_path: Path
) -> None:
    buffer = ReplayBuffer(buffer_url, "chats")
    n_texts = 3_000
    image = {"role": "user", "content": [IMAGE, {"type": "text", "text": "What?"}]}
    said = [*(["What?"] for _ in range(n_texts)), [image]]
    buffer.store_batch(
        [
            DataRow(
                ExpMeta(f"task-{number}"),
                Experience(messages=messages, actions=["No."], terminated=True),
            )
            for number, messages in enumerate(said)
        ]
    )
    rows = iter(RolloutRows(buffer, "messages"))
    assert sum("images" in next(rows) for _ in range(n_texts)) == 0
    with pytest.raises(
        FieldError, match="task 'task-3000', episode None: an image in a message co"
    ):
        next(rows)
    assert len(list(RolloutRows(buffer, "messages", images=True))) == n_texts + 1
    assert export_rollouts(buffer, tmp_path / "out", "messages").n_rows == n_texts + 1
    (last,) = pq.read_table(tmp_path / "out" / "train-00000.parquet").to_pylist()[-1:]
    assert (len(last["images"]), last["messages"][0]["content"][0]["type"]) == (1, "image")


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def test_tools_and_further_columns_come_from_the_episode(buffer_url: str, tmp_path: Path) -> None:
    buffer = ReplayBuffer(buffer_url, "chats")
    for number, reward in enumerate((0.0, 1.0)):
        with buffer.episode(
            "sums", "solver", episode_id=f"e{number}", group_id="g", model_version=number,
            tools=[TOOL], level={"deep": number + 1}, mixed=["x", 2][number],
        ) as episode:  # fmt: skip
            episode.append(messages=["1 + 1?"], extra={"score": 9.0})
            episode.append(actions=[f"{number}"], reward=reward, extra={"score": number + 0.5})
            episode.end()
    columns = ["reward", "group_id", "episode_id", "model_version", "meta.mixed", "extra.score"]
    renamed = {name: name for name in columns} | {"level": "meta.level.deep", "none": "meta.gone"}
    expected = [
        {
            "reward": float(i), "group_id": "g", "episode_id": f"e{i}", "model_version": i,
            "meta.mixed": ["x", 2][i], "extra.score": i + 0.5, "level": i + 1, "none": None,
        }
        for i in range(2)
    ]  # fmt: skip
    for form in ("messages", "prompt_completion", "conversations"):
        rows = list(RolloutRows(buffer, form, columns=renamed))  # type: ignore[arg-type]
        assert [{name: row[name] for name in renamed} for row in rows] == expected
        assert [json.loads(row["tools"]) for row in rows] == [[TOOL], [TOOL]]
        export_rollouts(buffer, tmp_path / form, form, columns=renamed)  # type: ignore[arg-type]
        table = pq.read_table(tmp_path / form / "train-00000.parquet")
        assert [str(table.schema.field(n).type) for n in ("level", "extra.score", "reward")] == [
            "int64", "double", "double",
        ]  # fmt: skip
        stored = [{name: row[name] for name in renamed} for row in table.to_pylist()]
        assert stored == [{**row, "meta.mixed": ['"x"', "2"][i]} for i, row in enumerate(expected)]
    (row,) = RolloutRows(buffer, "preference", columns=["meta.level", "reward"])
    assert (row["chosen_meta.level"], row["rejected_meta.level"]) == ({"deep": 2}, {"deep": 1})
    assert (row["chosen_reward"], json.loads(row["tools"])) == (1.0, [TOOL])


@pytest.mark.parametrize(
    ("tools", "expected"),
    [(None, None), ([], None), (json.dumps([TOOL]), [TOOL]), (TOOL, [TOOL]), ("add", ["add"])],
)
def test_tools_may_be_a_text_or_one_schema(tools: Any, expected: Any) -> None:
    buffer = ReplayBuffer("sqlite://")
    with buffer.episode("sums", **({} if tools is None else {"tools": tools})) as episode:
        episode.append(messages=["1 + 1?"], actions=["2"])
    # An open episode has its tools as well.
    other = buffer.episode("sums", **({} if tools is None else {"tools": tools}))
    other.append(messages=["1 + 1?"], actions=["2"])
    for row in RolloutRows(buffer, "conversations"):
        assert (None if row["tools"] is None else json.loads(row["tools"])) == expected


def test_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    buffer = ReplayBuffer("sqlite://")
    for columns, message in (
        (["rewrd"], r"a rollout has no 'rewrd' \(did you mean reward\?\); choose from"),
        (["state"], "name a key of the episode's meta"),
        ({"tools": "meta.x"}, "rows of messages have a column 'tools' already"),
        ("reward", "a list of names"),
    ):
        with pytest.raises(ValueError, match=message):
            RolloutRows(buffer, "messages", columns=columns)  # type: ignore[arg-type]
    with pytest.raises(FieldError, match="conversations have a column 'status' already"):
        export_rollouts(buffer, tmp_path / "out", columns={"status": "meta.status"})


def test_reasons_of_what_was_skipped_are_counted(buffer_url: str, tmp_path: Path) -> None:
    buffer = ReplayBuffer(buffer_url, "chats")
    for number in range(24):
        with buffer.episode(f"walk-{number}") as episode:
            episode.append(state={"x": number}, actions=[number], reward=0.0, terminated=True)
    with buffer.episode("silent") as episode:
        episode.append(messages=["?"], reward=1.0, terminated=True)
    for reward in (0.0, 1.0):
        with buffer.episode("sums") as episode:
            episode.append(messages=["?"], actions=[f"{reward}"], reward=reward, terminated=True)
    reasons = {
        "conversations": {"no messages": 24},
        "messages": {"no messages": 24},
        "prompt_completion": {"no messages": 24, "no answer of the assistant": 1},
        "preference": {"rewards do not differ enough": 25},
    }
    for form in ROLLOUT_FORMS:
        report = export_rollouts(buffer, tmp_path / form, form)
        assert report.skipped == reasons[form]
        assert report.n_skipped == sum(reasons[form].values())
    text = str(export_rollouts(buffer, tmp_path / "messages", "messages", overwrite=True))
    assert "3 rows of messages (24 skipped: no messages), from 27 steps" in text


def test_rollouts_have_checksums(buffer_url: str, tmp_path: Path) -> None:
    buffer, out = chats(buffer_url), tmp_path / "out"
    texts = QueryBuilder().eq("task_id", "text").build()
    export_rollouts(buffer, out, "messages", condition=texts)
    file = out / "train-00000.parquet"
    whole = file.read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(FileImportError, match="checksum is not the one in"):
            import_parquet(out, buffer_url, "copy")
    file.write_bytes(whole)
    last = pq.read_metadata(file).row_group(0).column(0)
    place = last.data_page_offset + last.total_compressed_size - 1
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.read_table(file, page_checksum_verification=True)
    file.write_bytes(whole)
    assert ReplayBuffer.list(buffer_url) == ["chats"]
    assert import_parquet(out, buffer_url, "copy", columns={"tools": None}).n_stored == 2
