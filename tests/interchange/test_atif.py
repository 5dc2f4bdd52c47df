"""Trajectories of ATIF in and out: what comes out equals what went in."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.cli import app as command_line
from sqlbuffer.errors import (
    ArgumentError,
    ExportError,
    FieldError,
    FileImportError,
    InsufficientDataError,
)
from sqlbuffer.interchange import RolloutRows, export_atif, import_atif
from sqlbuffer.llm import LLM_FIELDS
from tests.support.sql import run

TOKENS: dict[str, Any] = {"fields": LLM_FIELDS}
LAYOUTS: dict[str, dict[str, Any]] = {"rows": {}, "typed": TOKENS}
TEXTS = (
    "",
    "2 + 2?",
    "Grüße, 你好 \U0001f600",
    "a\nb\tc",
    "null",
    '{"$": 1}',
    "\x00\u2028",
    "x" * 300,
)


@pytest.fixture(params=LAYOUTS)
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return LAYOUTS[request.param]


class Chooser:
    """Makes random documents, with and without each key."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.n = 0

    def maybe(self, tree: dict[str, Any], name: str, make: Any, p: float = 0.4) -> None:
        if self.rng.random() < p:
            tree[name] = make()

    def text(self) -> str:
        return self.rng.choice(TEXTS)

    def value(self, depth: int = 2) -> Any:
        kind = self.rng.randrange(9 if depth else 6)
        if kind < 6:
            return [None, True, self.text(), self.rng.randrange(-5, 2**40), 0.1, -1.5e-7][kind]
        if kind == 6:
            return [self.value(depth - 1) for _ in range(self.rng.randrange(3))]
        return {self.text() or "k": self.value(depth - 1) for _ in range(self.rng.randrange(3))}

    def extra(self) -> Any:
        return self.rng.choice([None, {}, {"k": self.value()}, {"sqlbuffer": self.value()}])

    def content(self) -> Any:
        image = {"type": "image", "source": {"media_type": "image/png", "path": "images/a.png"}}
        parts = [{"type": "text", "text": self.text()}, image]
        return self.rng.choice([self.text(), self.text(), parts, []])

    def tokens(self) -> Any:
        n = self.rng.randrange(4)
        return self.rng.choice([[self.rng.randrange(50_000) for _ in range(n)], None, []])

    def logprobs(self) -> Any:
        values = [round(self.rng.uniform(-3, 0), self.rng.choice([2, 12])) for _ in range(3)]
        return self.rng.choice([values, [-0.5, -1], [None, -0.1], None, []])

    def metrics(self) -> Any:
        made: dict[str, Any] = {}
        self.maybe(made, "prompt_tokens", lambda: self.rng.randrange(9_999))
        self.maybe(made, "cost_usd", lambda: self.rng.choice([None, 0.00045, 1]))
        self.maybe(made, "prompt_token_ids", self.tokens)
        self.maybe(made, "completion_token_ids", self.tokens)
        self.maybe(made, "logprobs", self.logprobs)
        self.maybe(made, "extra", self.extra)
        return self.rng.choice([made, made, made, None])

    def call(self) -> dict[str, Any]:
        self.n += 1
        arguments = {self.text() or "a": self.value() for _ in range(self.rng.randrange(3))}
        made = {"tool_call_id": f"c{self.n}", "function_name": "look", "arguments": arguments}
        self.maybe(made, "extra", self.extra)
        return made

    def result(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        self.maybe(made, "source_call_id", lambda: self.rng.choice([None, f"c{self.n}"]), 0.8)
        self.maybe(made, "content", lambda: self.rng.choice([None, self.content()]), 0.8)
        self.maybe(made, "subagent_trajectory_ref", lambda: [{"trajectory_id": "sub"}], 0.2)
        self.maybe(made, "extra", self.extra, 0.2)
        return made

    def step(self, number: int) -> dict[str, Any]:
        source = self.rng.choice(["user", "system", "agent", "agent", "agent"])
        made = {"step_id": number, "source": source, "message": self.content()}
        self.maybe(made, "timestamp", lambda: "2026-10-11T10:30:02Z")
        self.maybe(made, "extra", self.extra)
        self.maybe(made, "is_copied_context", lambda: self.rng.choice([None, True]), 0.1)
        self.maybe(made, "llm_call_count", lambda: 1, 0.2)
        results = {"results": [self.result() for _ in range(self.rng.randrange(3))]}
        seen = [results, {**results, "more": 1}, {}, None]
        self.maybe(made, "observation", lambda: self.rng.choice([results, *seen]))
        if source == "agent":
            self.maybe(made, "model_name", self.text)
            self.maybe(made, "reasoning_effort", lambda: self.rng.choice(["low", 0.5, None]))
            self.maybe(made, "reasoning_content", lambda: self.rng.choice([self.text(), None]))
            calls = [self.call() for _ in range(self.rng.randrange(3))]
            self.maybe(made, "tool_calls", lambda: self.rng.choice([calls, calls, None]))
            self.maybe(made, "metrics", self.metrics, 0.6)
        if self.rng.random() < 0.05:
            made.pop("step_id") if self.rng.random() < 0.5 else made.update(step_id=number + 7)
        return made

    def document(self, name: str, depth: int = 2) -> dict[str, Any]:
        agent: dict[str, Any] = {"name": self.text() or "a", "version": "1.0"}
        self.maybe(agent, "model_name", lambda: self.rng.choice(["m", None]))
        tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
        self.maybe(agent, "tool_definitions", lambda: self.rng.choice([[tool], [], None]))
        self.maybe(agent, "extra", self.extra)
        steps = [self.step(i + 1) for i in range(self.rng.randrange(1, 7))]
        made: dict[str, Any] = {"schema_version": "ATIF-v1.7", "agent": agent, "steps": steps}
        made["trajectory_id"] = name
        self.maybe(made, "session_id", lambda: self.rng.choice(["run", None]))
        self.maybe(made, "notes", self.text)
        self.maybe(made, "final_metrics", lambda: {"total_steps": len(steps), "extra": {}})
        self.maybe(made, "continued_trajectory_ref", lambda: "next.json", 0.1)
        self.maybe(made, "extra", self.extra)
        self.maybe(made, "of_tomorrow", self.value, 0.1)
        if depth:
            children = range(self.rng.randrange(3))
            subagents = [self.document(f"sub{i}", depth - 1) for i in children]
            self.maybe(made, "subagent_trajectories", lambda: self.rng.choice([subagents, None]))
        return made


def exported(buffer: ReplayBuffer, folder: Path, **options: Any) -> list[Any]:
    export_atif(buffer, folder, overwrite=True, **options)
    return [json.loads(file.read_bytes()) for file in sorted(folder.glob("trajectory-*.json"))]


def agents_of(document: Any) -> int:
    """Return the number of episodes of a document."""
    return 1 + sum(map(agents_of, document.get("subagent_trajectories") or ()))


def test_random_documents_come_out_as_they_went_in(
    buffer_url: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    chooser = Chooser(len(settings))
    documents = [chooser.document(f"d{i}") for i in range(40)]
    report = import_atif(documents, buffer_url, **settings)
    assert report.n_stored == report.n_steps
    with ReplayBuffer(buffer_url) as buffer:
        assert exported(buffer, tmp_path / "out") == documents
        n_episodes = len(run(buffer_url, "SELECT episode_id FROM v_episodes"))
        assert n_episodes == sum(map(agents_of, documents))
        # No document had to be kept whole.
        metas = [str(meta) for (meta,) in run(buffer_url, "SELECT meta FROM v_episodes")]
        assert sum('"document"' in meta or "'document'" in meta for meta in metas) < 5
        # A second time stores nothing, and a folder is imported as well as dicts are.
        again = import_atif(tmp_path / "out", buffer_url)
        assert (again.n_stored, again.n_duplicates) == (0, report.n_steps)
        import_atif(tmp_path / "out", buffer_url, "copy", prefix="run1/", **settings)
    with ReplayBuffer(buffer_url, "copy") as copy:
        assert exported(copy, tmp_path / "again") == documents
    pairs = run(buffer_url, "SELECT episode_id, parent_id FROM v_episodes WHERE buffer = 'copy'")
    keys = {key for key, _ in pairs}
    assert all(key.startswith("run1/d") for key in keys)
    assert {parent for _, parent in pairs} - {None} <= keys


def test_copies_and_merges_keep_trajectories(
    buffer_url: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    documents = [Chooser(5).document(f"d{i}") for i in range(4)]
    import_atif(documents, buffer_url, "source", **settings)
    with (
        ReplayBuffer(buffer_url, "source") as source,
        ReplayBuffer(buffer_url, "goal", create=True, **settings) as goal,
    ):
        source.copy_to(goal)
        source.copy_to(goal, prefix="again/")
        made = exported(goal, tmp_path / "out")
    assert sorted(map(json.dumps, made)) == sorted(map(json.dumps, made[:4] * 2))
    assert all(document in made for document in documents)


def step(number: int, source: str, message: Any, **more: Any) -> dict[str, Any]:
    return {"step_id": number, "source": source, "message": message, **more}


def document(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    agent = {"name": "solver", "version": "1", "tool_definitions": [{"type": "function"}]}
    return {"schema_version": "ATIF-v1.7", "agent": agent, "steps": list(steps), **more}


CALL = {"tool_call_id": "c1", "function_name": "add", "arguments": {"a": 2}}
SUM = (
    step(1, "system", "Be short."),
    step(2, "user", "2 + 2?"),
    step(
        3, "agent", "I add.", tool_calls=[CALL], reasoning_content="Hm.",
        observation={"results": [{"source_call_id": "c1", "content": "4"}]},
        metrics={
            "prompt_tokens": 3, "prompt_token_ids": [1, 2, 3], "completion_token_ids": [4, 5],
            "logprobs": [-0.1, -0.25],
        },
    ),
    step(4, "agent", "4"),
)  # fmt: skip


def test_a_trajectory_is_a_conversation_with_tools(
    buffer_url: str, settings: dict[str, Any]
) -> None:
    subagent = document(step(1, "user", "Look."), step(2, "agent", "Seen."), trajectory_id="sub")
    whole = document(*SUM, session_id="s1", subagent_trajectories=[subagent])
    import_atif(whole, buffer_url, **settings)
    with ReplayBuffer(buffer_url) as buffer:
        first, second = RolloutRows(buffer)
        rows = list(buffer.get_all(QueryBuilder().eq("episode_id", "s1").build()))
    assert [(one["role"], one["content"]) for one in first["messages"]] == [
        ("system", "Be short."), ("user", "2 + 2?"), ("assistant", "I add."), ("tool", "4"),
        ("assistant", "4"),
    ]  # fmt: skip
    assert first["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"a": 2}'
    assert json.loads(first["tools"]) == [{"type": "function"}]
    assert (first["agent_id"], first["n_steps"], second["episode_id"]) == ("solver", 2, "s1/sub")
    assert run(
        buffer_url, "SELECT episode_id, parent_id, task_id, status FROM v_episodes ORDER BY 1"
    ) == [("s1", None, "s1", "complete"), ("s1/sub", "s1", "s1", "complete")]
    metrics = (rows[0].exp_data.extra or {})["atif"]["agent"]["metrics"]
    if settings:
        assert metrics == {"prompt_tokens": 3}
        assert rows[0].fields["prompt_ids"].tolist() == [1, 2, 3]
        assert rows[0].fields["completion_ids"].tolist() == [4, 5]
        assert rows[0].fields["logprobs"].tolist() == np.float32([-0.1, -0.25]).tolist()
        assert [len(values) for values in rows[1].fields.values()] == [0, 0, 0, 0]
    else:
        assert metrics["logprobs"] == [-0.1, -0.25]


def fill(buffer: ReplayBuffer, chooser: random.Random) -> None:
    """Store conversations in each form that `RolloutRows` joins."""
    tools = [{"type": "function", "function": {"name": "add"}}]
    for number in range(20):
        with buffer.episode(
            f"t{number % 3}", "solver", episode_id=f"e{number}",
            **chooser.choice([{}, {"group_id": "g", "parent_id": "p", "tools": tools, "level": 2}]),
        ) as episode:  # fmt: skip
            context: list[Any] = []
            for turn in range(chooser.randint(1, 4)):
                asked = chooser.choice(
                    [
                        [{"role": "user", "content": f"{turn}?"}],
                        [f"{turn}?"],
                        [{"role": "tool", "tool_call_id": "c", "content": "x", "name": "add"}],
                        [{"role": "developer", "content": "é"}, {"role": "user", "content": "?"}],
                        [{"role": "user", "content": [{"type": "image", "image": PIXELS}, "?"]}],
                        [],
                    ]
                )
                call = {"id": None, "name": "add", "arguments": '{"a":1}'}
                said = chooser.choice(
                    [
                        f"{turn}!",
                        {"role": "assistant", "content": "Hm", "reasoning_content": "r"},
                        {"role": "assistant", "content": "", "thinking": "t"},
                        call,
                        {**call, "arguments": "not JSON"},
                    ]
                )
                is_whole = chooser.random() < 0.5
                tokens = {"completion_ids": [1, 2], "logprobs": [-0.1, -0.2]}
                tokens |= {"loss_mask": [1, 0]} if "loss_mask" in buffer.fields else {}
                fields = {"prompt_ids": [], **tokens} if buffer.fields else {}
                episode.append(
                    messages=[*context, *asked] if is_whole else asked, actions=[said],
                    **chooser.choice([{}, {"reward": 0.5, "extra": {"score": 1}}]), **fields,
                )  # fmt: skip
                context += asked
            episode.end(**chooser.choice([{}, {"reward": 2.0}]))


PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)


def test_conversations_of_other_programs_read_the_same_afterwards(
    buffer_url: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    columns = ["group_id", "parent_id", "meta", "extra"]
    with ReplayBuffer(buffer_url, **settings) as buffer:
        fill(buffer, random.Random(3))
        before = list(RolloutRows(buffer, columns=columns, images=True))
        documents = exported(buffer, tmp_path / "out")
        keys = {row["episode_id"] for row in before}
        rewards = [
            row.exp_data.reward_t for row in buffer.get_all() if row.exp_meta.episode_id in keys
        ]
    assert len(documents) == len(before) >= 15
    import_atif(tmp_path / "out", buffer_url, "copy", **settings)
    with ReplayBuffer(buffer_url, "copy") as copy:
        assert list(RolloutRows(copy, columns=columns, images=True)) == before
        assert exported(copy, tmp_path / "again") == documents
        assert [row.exp_data.reward_t for row in copy.get_all()] == rewards
        if settings:
            assert {tuple(row.fields["completion_ids"]) for row in copy} == {(1, 2)}
            masks = {tuple(row.fields.get("loss_mask", (1, 0))) for row in copy}
            assert masks == {(True, False)}
    # A buffer without the fields keeps the lists as well, and gives them back.
    import_atif(tmp_path / "out", buffer_url, "plain")
    with ReplayBuffer(buffer_url, "plain") as plain:
        assert exported(plain, tmp_path / "plain") == documents
        assert [row["messages"] for row in RolloutRows(plain, images=True)] == [
            row["messages"] for row in before
        ]


def test_an_edited_export_is_a_trajectory_of_its_own(buffer_url: str, tmp_path: Path) -> None:
    with ReplayBuffer(buffer_url, "a") as buffer, buffer.episode("t") as episode:
        episode.append(messages=["?"], actions=["!"], reward=1.0, terminated=True)
    (made,) = exported(ReplayBuffer(buffer_url, "a"), tmp_path / "out")
    made["steps"].append(step(3, "user", "More?"))
    import_atif(made, buffer_url, "b")
    assert exported(ReplayBuffer(buffer_url, "b"), tmp_path / "out") == [made]


def test_trajectories_of_one_run_are_all_stored(buffer_url: str, tmp_path: Path) -> None:
    documents = [document(step(1, "user", text), session_id="run") for text in ("a", "b", "c")]
    for _ in range(2):
        import_atif(documents, buffer_url)
    keys = [key for (key,) in run(buffer_url, "SELECT episode_id FROM v_episodes ORDER BY 1")]
    assert len(keys) == 3
    assert keys[0] == "run"
    assert all(key.startswith("run-") for key in keys[1:])
    with ReplayBuffer(buffer_url) as buffer:
        assert exported(buffer, tmp_path / "out") == documents


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": "2"}, r"schema_version: expected a version such as 'ATIF-v1.7', got"),
        ({"agent": {"name": 5}}, "agent.name: expected text, got 5"),
        ({"agent": None}, "agent: expected an object with a name"),
        ({"steps": []}, "steps: expected a list of at least one step"),
        ({"steps": [1]}, r"steps\[0\]: expected an object, got 1"),
        ({"steps": [{"source": "tool"}]}, r"steps\[0\].source: expected one of system, user, ag"),
        ({"steps": [step(1, "user", None)]}, r"steps\[0\].message: expected text or a list"),
        (
            {"steps": [SUM[0], step(2, "agent", "", tool_calls=[{"tool_call_id": "c"}])]},
            r"steps\[1\].tool_calls\[0\].function_name: expected text, got None",
        ),
        (
            {"steps": [step(1, "agent", "", tool_calls=[{**CALL, "arguments": "{}"}])]},
            r"steps\[0\].tool_calls\[0\].arguments: expected an object",
        ),
        (
            {"steps": [step(1, "agent", "", observation={"results": [4]})]},
            r"steps\[0\].observation.results\[0\]: expected an object",
        ),
        (
            {"subagent_trajectories": [{**document(), "steps": 1}]},
            r"subagent_trajectories\[0\].steps: expected a list",
        ),
    ],
)
def test_a_wrong_document_is_named_with_its_place(
    buffer_url: str, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(document(*SUM)))
    (tmp_path / "b.json").write_text(json.dumps({**document(*SUM), **change}))
    (tmp_path / "result.json").write_text('{"reward": 1}')  # of the same job
    with pytest.raises(FileImportError, match=rf"b.json: {message}"):
        import_atif(tmp_path, buffer_url, "new")
    assert ReplayBuffer.list(buffer_url) == []
    with pytest.raises(FileImportError, match=rf"trajectory 1: {message}"):
        import_atif([document(*SUM), {**document(*SUM), **change}], buffer_url, "new")


def test_wrong_files_and_arguments_are_named(buffer_url: str, tmp_path: Path) -> None:
    with pytest.raises(FileImportError, match=r"gone.json: there is no such file"):
        import_atif(tmp_path / "gone.json", buffer_url)
    with pytest.raises(InsufficientDataError, match="has no trajectory of ATIF"):
        import_atif(tmp_path, buffer_url)
    with pytest.raises(InsufficientDataError, match="has no trajectory"):
        import_atif([], buffer_url)
    with pytest.raises(ArgumentError, match="source is the path"):
        import_atif(5, buffer_url)
    lines = tmp_path / "all.jsonl"
    lines.write_text(json.dumps(document(*SUM)) + "\n\n{'a': 1}\n")
    with pytest.raises(FileImportError, match=r"all.jsonl, line 3: this is not JSON"):
        import_atif(lines, buffer_url)
    lines.write_text(json.dumps(document(*SUM)) + "\n")
    assert import_atif(lines, buffer_url, "lines").n_stored == 2
    for raw in (b"{", b"\xff\xfe\x00", b"[" * 100_000, b"[1]"):
        (tmp_path / "bad.json").write_bytes(raw)
        with pytest.raises(FileImportError, match=r"bad.json: "):
            import_atif(tmp_path / "bad.json", buffer_url)
    with pytest.raises(FieldError, match=r"trajectory 0: .*obs"):
        import_atif(document(*SUM), buffer_url, "typed", fields={"obs": "float32"})
    large = document(step(1, "agent", "", metrics={"prompt_token_ids": [2**40]}))
    with pytest.raises(FieldError, match=r"trajectory 0: .*prompt_ids"):
        import_atif(large, buffer_url, "ids", **TOKENS)
    # Another trajectory with the same id.
    import_atif(document(*SUM, trajectory_id="d"), buffer_url, "twice")
    other = document(SUM[0], trajectory_id="d")
    with pytest.raises(FileImportError, match=r"trajectory 0: the buffer has other steps"):
        import_atif(other, buffer_url, "twice")
    assert import_atif(other, buffer_url, "twice", on_conflict="skip").n_conflicts == 1
    assert import_atif(other, buffer_url, "twice", prefix="b/").n_stored == 1


def test_episodes_without_a_trajectory_are_counted(buffer_url: str, tmp_path: Path) -> None:
    with ReplayBuffer(buffer_url) as buffer:
        buffer.add(state=1)
        with buffer.episode("walk") as episode:
            episode.append(state=1, actions=[2])
        buffer.episode("open").append(messages=["?"])
        aborted = buffer.episode("aborted")
        aborted.append(messages=["?"])
        aborted.abort()
        with buffer.episode("sums", episode_id="e") as episode:
            episode.append(messages=["?"], actions=["!"], extra={"x": 1})
        report = export_atif(buffer, tmp_path / "out")
        assert report.skipped == {"no messages": 1, "open": 1, "aborted": 1}
        assert "1 trajectory (1 skipped: " in str(report)
        with pytest.raises(ExportError, match="has an export already"):
            export_atif(buffer, tmp_path / "out")
        condition = QueryBuilder().eq("task_id", "walk").build()
        assert exported(buffer, tmp_path / "out", condition=condition) == []
        with buffer.episode("loud") as episode:
            sound = {"type": "input_audio", "input_audio": {"data": "UklG"}}
            episode.append(messages=[{"role": "user", "content": [sound]}])
        with pytest.raises(FieldError, match=r"task 'loud', episode '.*input_audio"):
            export_atif(buffer, tmp_path / "new")
        assert not (tmp_path / "new").exists()


def test_a_subagent_whose_parent_has_left_has_a_file_of_its_own(
    buffer_url: str, tmp_path: Path
) -> None:
    subagent = document(step(1, "user", "Look."), trajectory_id="sub")
    whole = document(
        *SUM,
        trajectory_id="main",
        subagent_trajectories=[subagent, dict(subagent, trajectory_id="b")],
    )
    import_atif(whole, buffer_url)
    with ReplayBuffer(buffer_url) as buffer:
        buffer.delete_episodes(["main"])
        assert [one["trajectory_id"] for one in exported(buffer, tmp_path / "out")] == ["sub", "b"]
    import_atif(whole, buffer_url, "other")
    with ReplayBuffer(buffer_url, "other") as buffer:
        buffer.delete_episodes(["main/sub"])
        report = export_atif(buffer, tmp_path / "new")
        assert report.skipped == {"sub-agents have left, or do not match": 1}
        assert report.n_trajectories == 1  # the other sub-agent


def test_the_command_exports_and_imports(sqlite_url: str, tmp_path: Path) -> None:
    runner, folder = CliRunner(), str(tmp_path / "out")
    documents = [Chooser(2).document(f"d{i}") for i in range(3)]
    lines = tmp_path / "all.jsonl"
    lines.write_text("\n".join(map(json.dumps, documents)))
    made = runner.invoke(command_line, ["import", str(lines), sqlite_url, "--format", "atif"])
    assert made.exit_code == 0, made.output
    made = runner.invoke(command_line, ["export", sqlite_url, folder, "--format", "atif"])
    assert made.exit_code == 0, made.output
    assert "3 trajectories" in made.output
    files = sorted((tmp_path / "out").glob("trajectory-*.json"))
    assert [json.loads(file.read_bytes()) for file in files] == documents
    wrong = ["export", sqlite_url, folder, "--format", "atif", "--columns", "reward", "--overwrite"]
    assert "--columns is for other formats" in runner.invoke(command_line, wrong).output
