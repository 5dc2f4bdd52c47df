"""`export_rollouts` writes conversations for trainers of language models."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
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
def test_an_image_in_a_message_is_refused(buffer_url: str, tmp_path: Path, fields: Any) -> None:
    buffer, out = chats(buffer_url, fields), tmp_path / "out"
    message = r"task 'image', episode 'image-.': a part of the type 'image_url' in a message would"
    texts = QueryBuilder().eq("task_id", "text").build()
    for form in ROLLOUT_FORMS:
        with pytest.raises(FieldError, match=message):
            export_rollouts(buffer, out, form)
        assert not out.exists()
        with pytest.raises(FieldError, match=message):
            list(RolloutRows(buffer, form))
        report = export_rollouts(buffer, tmp_path / form, form, condition=texts)
        assert report.n_rows == (1 if form == "preference" else 2)


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
    assert import_parquet(out, buffer_url, "copy").n_stored == 2
