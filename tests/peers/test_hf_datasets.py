"""`to_hf` with the library datasets."""

import gc
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from torch.utils.data import DataLoader

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import CopyError, ExportError, FieldError
from sqlbuffer.interchange import export_parquet, export_rollouts, to_hf
from sqlbuffer.interchange.hugging_face import ROLLOUT_FORMS, RolloutForm
from tests.peers.rollouts import store_rollouts
from tests.support.sql import run, scalar


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def typed(url: str, n: int = 1000, **settings: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(
        url, "typed", create=True,
        fields={"obs": ("float32", (3,)), "tokens": ("int64", (-1,))}, **settings,
    )  # fmt: skip
    columns = {
        "obs": np.arange(3 * n, dtype=np.float32).reshape(n, 3),
        "tokens": [np.arange(i % 4) for i in range(n)],
        "reward": np.arange(n) / 4,
    }
    buffer.extend(columns, task_id="t")
    return buffer


def test_steps_have_their_fields_keys_and_rewards(database_url: str) -> None:
    with typed(database_url, 10) as buffer:
        examples = list(to_hf(buffer))
        rows = list(buffer)
    assert [example["seq"] for example in examples] == [row.seq for row in rows]
    for example, row in zip(examples, rows, strict=True):
        np.testing.assert_array_equal(example["obs"], row.fields["obs"])
        np.testing.assert_array_equal(example["tokens"], row.fields["tokens"])
        assert example["reward"] == row.exp_data.reward_t
        assert example["task_id"] == "t"
        assert example["terminated"] is None
        assert example["messages"] is None


def test_steps_of_json_have_the_values_that_were_stored(database_url: str) -> None:
    with ReplayBuffer(database_url, create=True) as buffer:
        state = {"text": "Grüße 你好", "grid": np.eye(2), "none": None}
        buffer.add(task_id="a", state=state, actions=["left"], reward=0.0, extra={"k": [1]})
        buffer.add(task_id="b", state=None, reward=float("nan"), terminated=True)
        first, second = to_hf(buffer)
    np.testing.assert_array_equal(first["state"].pop("grid"), np.eye(2))
    assert first["state"] == {"text": "Grüße 你好", "none": None}
    assert (first["actions"], first["extra"], first["reward"]) == (["left"], {"k": [1]}, 0.0)
    assert np.isnan(second["reward"])
    assert (second["state"], second["terminated"], second["truncated"]) == (None, True, None)


def test_columns_and_a_condition_choose(database_url: str) -> None:
    with typed(database_url) as buffer:
        condition = QueryBuilder().lt("exp_data.reward_t", 1.0).build()
        examples = list(to_hf(buffer, columns=["obs", "seq"], condition=condition))
        assert [set(example) for example in examples] == [{"obs", "seq"}] * 4
        with pytest.raises(FieldError, match="did you mean obs"):
            to_hf(buffer, columns=["obsx"])


@pytest.mark.parametrize("n_workers", [0, 2])
def test_workers_read_each_step_once(database_url: str, n_workers: int) -> None:
    with typed(database_url, 3000) as buffer:
        dataset = to_hf(buffer, columns=["seq"], n_shards=4)
        assert dataset.num_shards == 4
        loader = DataLoader(
            dataset, batch_size=100, num_workers=n_workers,
            multiprocessing_context="spawn" if n_workers else None,
        )  # fmt: skip
        seen = np.concatenate([batch["seq"].numpy() for batch in loader])
    assert len(seen) == len(np.unique(seen)) == 3000


def later(n: int) -> dict[str, Any]:
    return {"obs": np.zeros((n, 3), np.float32), "tokens": [[]] * n}


def seqs(dataset: Any) -> list[int]:
    return [example["seq"] for example in dataset]


def test_iterations_read_the_steps_of_the_moment_at_which_the_data_set_was_made(
    sqlite_url: str,
) -> None:
    with typed(sqlite_url, 100) as buffer:
        first = to_hf(buffer, columns=["seq"], n_shards=3)
        buffer.extend(later(50), task_id="u")
        second = to_hf(buffer, columns=["seq"], n_shards=3)
        for _ in range(2):
            assert (len(seqs(first)), len(seqs(second))) == (100, 150)
        buffer.clear()
        assert seqs(first) == seqs(to_hf(buffer, columns=["seq"])) == []


@pytest.mark.parametrize("n_shards", [1, 4])
def test_nothing_is_evicted_before_it_was_read(database_url: str, n_shards: int) -> None:
    with typed(database_url, 20_000, max_capacity=20_000) as buffer:
        before = [row.seq for row in buffer.get_paginated(1, 20_000)]
        dataset = to_hf(buffer, columns=["seq"], n_shards=n_shards)
        examples = iter(dataset)
        seen = [next(examples)["seq"]]
        writer = threading.Thread(target=lambda: buffer.extend(later(20_000), task_id="u"))
        writer.start()
        writer.join()
        assert seen + seqs(examples) == before
        assert min(row.seq or 0 for row in buffer.get_paginated(1, 5)) > max(before)
        assert seqs(dataset) == before


@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_workers_read_what_the_process_that_made_the_data_set_holds(
    database_url: str, context: str
) -> None:
    with typed(database_url, 2_000, max_capacity=2_000) as buffer:
        before = [row.seq for row in buffer]
        dataset = to_hf(buffer, columns=["seq"], n_shards=4)
        buffer.extend(later(2_000), task_id="u")
        for _ in range(2):  # once more: workers that have ended do not end the hold
            loader = DataLoader(
                dataset, batch_size=100, num_workers=2, multiprocessing_context=context
            )
            seen = np.concatenate([batch["seq"].numpy() for batch in loader])
            assert np.sort(seen).tolist() == before
        del loader, dataset
        gc.collect()
        assert scalar(database_url, "SELECT count(*) FROM holds") == 0


def test_the_hold_ends_with_the_last_data_set_that_was_made_of_it(database_url: str) -> None:
    with typed(database_url, 500, max_capacity=500) as buffer:
        dataset = to_hf(buffer, columns=["seq"], n_shards=2)
        doubled = dataset.map(lambda example: {"double": 2 * example["seq"]}).shuffle(seed=0)
        copy = pickle.loads(pickle.dumps(dataset))
        del dataset
        assert len(seqs(copy)) == 500
        del copy
        gc.collect()
        buffer.extend(later(500), task_id="u")
        assert sorted(seqs(doubled)) == list(range(1, 501))
        del doubled
        gc.collect()
        assert scalar(database_url, "SELECT count(*) FROM holds") == 0


@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_steps_that_have_left_all_the_same_are_an_error(sqlite_url: str, evict_by: str) -> None:
    with typed(sqlite_url, 500, max_capacity=500, evict_by=evict_by) as buffer:
        dataset = to_hf(buffer, columns=["seq"], n_shards=2)
        run(sqlite_url, "DELETE FROM holds")  # as if its process had been killed
        for task in "uvw":
            buffer.extend(later(250), task_id=task)
        with pytest.raises(CopyError, match=r"left .* before they were"):
            seqs(dataset)


def test_rollouts_are_held_as_well(database_url: str) -> None:
    with store_rollouts(database_url, max_capacity=24) as buffer:
        before = list(to_hf(buffer, "conversations"))
        dataset, pairs = to_hf(buffer, "conversations"), to_hf(buffer, "preference")
        for _ in range(24):
            buffer.add(task_id="later", messages=["?"], terminated=True)
        assert (list(dataset), len(list(pairs)), len(before)) == (before, 4, 12)


def test_conversations_are_one_row_an_episode(database_url: str) -> None:
    with store_rollouts(database_url, n_tasks=2) as buffer:
        rows = list(to_hf(buffer, "conversations"))
    assert len(rows) == 6
    first = rows[1]
    assert (first["task_id"], first["agent_id"], first["episode_id"]) == ("task-0", "solver", "0/1")
    assert (first["reward"], first["stop_reason"], first["n_steps"]) == (0.5, "terminated", 2)
    assert first["model_version"] == 7
    assert [message["role"] for message in first["messages"]] == [
        "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert first["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a": 0, "b": 2}'
    assert first["messages"][0]["content"] == "What is 0 + 2? Grüße, 你好"


def test_preference_pairs_are_the_best_and_the_worst_of_a_task(database_url: str) -> None:
    with store_rollouts(database_url) as buffer:
        rows = list(to_hf(buffer, "preference"))
        assert [row["chosen"][-1]["content"] for row in rows] == [
            "It is 2.", "It is 3.", "It is 4.", "It is 5.",
        ]  # fmt: skip
        assert [row["rejected"][-1]["content"] for row in rows] == [
            "It is 0.", "It is 1.", "It is 2.", "It is 3.",
        ]  # fmt: skip
        assert {row["prompt"][0]["role"] for row in rows} == {"user"}
        assert {(row["chosen_reward"], row["rejected_reward"]) for row in rows} == {(1.0, 0.0)}
        assert list(to_hf(buffer, "preference", min_margin=1.0)) == []


def test_rewards_of_judges_count(database_url: str) -> None:
    with store_rollouts(database_url, n_tasks=1) as buffer:
        first = QueryBuilder().eq("exp_meta.episode_id", "0/0").build()
        buffer.annotate(first, reward=9.0)
        with buffer.episode("task-0", "solver", episode_id="0/own") as episode:
            question = {"role": "user", "content": "What is 0 + 2? Grüße, 你好"}
            episode.append(messages=[question], actions=["own"], terminated=True)
            episode.end(reward=-5.0)
        (row,) = to_hf(buffer, "preference")
    assert (row["chosen_reward"], row["rejected_reward"]) == (18.0, -5.0)


def test_episodes_that_have_not_ended_well_are_not_in_pairs(database_url: str) -> None:
    question = {"role": "user", "content": "2 + 2?"}
    with ReplayBuffer(database_url, create=True) as buffer:
        for answer, reward in (("4", 1.0), ("5", 0.5)):
            with buffer.episode("sums") as episode:
                episode.append(messages=[question], actions=[answer], reward=reward)
        aborted, running = buffer.episode("sums"), buffer.episode("sums")
        aborted.append(messages=[question], actions=["6"], reward=-5.0)
        aborted.abort()
        running.append(messages=[question], actions=["7"], reward=0.0)
        buffer.flush()
        (row,) = to_hf(buffer, "preference")
        statuses = sorted(one["status"] for one in to_hf(buffer, "conversations"))
    assert (row["chosen_reward"], row["rejected_reward"]) == (1.0, 0.5)
    assert statuses == ["aborted", "complete", "complete", "open"]


def test_an_empty_buffer_has_no_rows(database_url: str) -> None:
    with ReplayBuffer(database_url, create=True) as buffer:
        for rows in ("steps", "conversations", "messages", "prompt_completion", "preference"):
            assert list(to_hf(buffer, rows)) == []  # type: ignore[arg-type]


def test_wrong_arguments_are_named(sqlite_url: str) -> None:
    with store_rollouts(sqlite_url, n_tasks=1) as buffer:
        with pytest.raises(ValueError, match=r"rows is one of steps, .* got 'dpo'"):
            to_hf(buffer, "dpo")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="an episode is in one shard"):
            to_hf(buffer, "messages", n_shards=2)
        with pytest.raises(ValueError, match="n_shards is an integer from 1 on, got 0"):
            to_hf(buffer, n_shards=0)


def test_values_that_are_not_messages_are_named(sqlite_url: str) -> None:
    with ReplayBuffer(sqlite_url) as buffer:
        buffer.add(task_id="odd", messages=[{"content": "?"}], terminated=True)
        with pytest.raises(ValueError, match="task 'odd', episode None: a message is a dict"):
            list(to_hf(buffer, "messages"))


def test_a_folder_of_steps_opens(database_url: str, tmp_path: Path) -> None:
    with typed(database_url, 10) as buffer, buffer.episode("e") as episode:
        episode.append(obs=np.ones(3, np.float32), tokens=[7], extra={"text": "Grüße"})
        episode.end()
        export_parquet(buffer, tmp_path / "out")
        rows = list(buffer)
    steps = load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(steps) == 11
    for example, row in zip(steps, rows, strict=True):
        assert example["seq"] == row.seq
        assert example["obs"] == row.fields["obs"].tolist()
        assert example["tokens"] == row.fields["tokens"].tolist()
    assert json.loads(steps[10]["extra"]) == {"text": "Grüße"}
    episodes = load_dataset(
        str(tmp_path / "out"), "episodes", split="train", cache_dir=str(tmp_path / "cache")
    )
    assert [(one["status"], one["length"]) for one in episodes] == [("complete", 1)]


@pytest.mark.parametrize("form", ROLLOUT_FORMS)
def test_a_folder_of_rollouts_has_the_rows_of_the_buffer(
    database_url: str, tmp_path: Path, form: RolloutForm
) -> None:
    with store_rollouts(database_url) as buffer:
        expected = list(to_hf(buffer, form))
        report = export_rollouts(buffer, tmp_path / "out", form)
    assert (report.n_rows, report.n_skipped, report.n_bytes > 0) == (len(expected), 0, True)
    stored = load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert [without_none(example) for example in stored] == [without_none(r) for r in expected]


def test_images_are_decoded_in_the_same_way_from_a_buffer_and_a_folder(
    database_url: str, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3), np.uint8)
    with ReplayBuffer(database_url, create=True) as buffer:
        for number in range(4):
            parts = [{"type": "image", "image": one} for one in pixels[: number % 3]]
            content = [*parts, {"type": "text", "text": f"{number}?"}]
            with buffer.episode("look", level=number) as episode:
                episode.append(
                    messages=[{"role": "user", "content": content}], actions=["A cat."],
                    reward=float(number), terminated=True,
                )  # fmt: skip
        expected = list(to_hf(buffer, "conversations", columns=["meta.level"], images=True))
        with pytest.raises(ValueError, match="images is for rows of rollouts"):
            to_hf(buffer, images=True)
        export_rollouts(buffer, tmp_path / "out", columns=["meta.level"])
    rows = list(
        load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    )
    for row, other in zip(rows, expected, strict=True):
        number = row["meta.level"]
        images, others = row.pop("images"), other.pop("images")
        assert without_none(row) == without_none(other)
        assert len(images) == number % 3
        for image, decoded, one in zip(images, others, pixels, strict=False):
            assert (np.asarray(image) == one).all()
            assert (np.asarray(decoded) == one).all()


def without_none(value: Any) -> Any:
    """Return a value without the keys of dicts that are null."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


def test_a_folder_of_rollouts_is_not_overwritten_unless_asked(
    sqlite_url: str, tmp_path: Path
) -> None:
    with store_rollouts(sqlite_url, n_tasks=1) as buffer:
        export_rollouts(buffer, tmp_path / "out")
        with pytest.raises(ExportError, match="has an export already"):
            export_rollouts(buffer, tmp_path / "out")
        assert export_rollouts(buffer, tmp_path / "out", overwrite=True).n_rows == 3


def test_rollouts_of_an_empty_buffer_are_a_folder_without_rows(
    sqlite_url: str, tmp_path: Path
) -> None:
    with ReplayBuffer(sqlite_url) as buffer:
        assert export_rollouts(buffer, tmp_path / "out").n_rows == 0
    stored = pq.read_table(tmp_path / "out" / "train-00000.parquet")
    assert (len(stored), stored.column_names[:2]) == (0, ["task_id", "agent_id"])


def test_an_export_that_fails_leaves_nothing_behind(sqlite_url: str, tmp_path: Path) -> None:
    with ReplayBuffer(sqlite_url) as buffer:
        buffer.add(task_id="odd", messages=[{"content": "?"}], terminated=True)
        with pytest.raises(ValueError, match="task 'odd'"):
            export_rollouts(buffer, tmp_path / "out" / "deep")
    assert list((tmp_path / "out").iterdir()) == []
