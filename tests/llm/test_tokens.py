"""Rollouts of groups: how each has ended, and the sequences of its tokens."""

import pickle
import random

import numpy as np
import pytest

from sqlbuffer import QueryBuilder
from sqlbuffer.errors import ArgumentError, FieldError
from sqlbuffer.llm import LLM_FIELDS, padded
from tests.llm.templates import FORGETFUL, MARKED, PLAIN, UNSTABLE, Characters, text_of

GROUP = {"group_by": "group_id", "timeout_s": 0, "order": "fifo"}
NAMES = ("ids", "loss_mask", "logprobs", "versions", "turns")


@pytest.fixture
def buffer(buffer_url, make_buffer):
    options = {"leases": True, "max_use": 1, "track_samples": True}
    with make_buffer(buffer_url, fields=LLM_FIELDS, **options) as buffer:
        yield buffer


def store(buffer, turns, key="t/0", reward=1.0, **keys):
    """Store a rollout of `(prompt, completion, further fields)`."""
    with buffer.episode(key.split("/")[0], episode_id=key, **keys) as episode:
        for prompt, completion, *more in turns:
            fields = more[0] if more else {}
            episode.append(prompt_ids=prompt, completion_ids=completion, **fields)
        if reward is not None:
            episode.end(reward=reward)


def taken(buffer, n=1, **options):
    return buffer.lease(n, **{**GROUP, **options}).take()


def sequences_of(rollout):
    return [sequence.ids.tolist() for sequence in rollout.sequences]


def test_a_turn_joins_the_sequence_that_its_prompt_begins_with(buffer):
    logprobs, mask = {"logprobs": [-1.0, -2.0]}, {"loss_mask": np.array([True, False])}
    store(buffer, [([1, 2], [3, 4], logprobs | mask), ([1, 2, 3, 4, 5], [6])], model_version=4)
    (rollout,) = taken(buffer).rollouts()
    (sequence,) = rollout.sequences
    assert {name: np.asarray(getattr(sequence, name)).tolist() for name in NAMES} == {
        "ids": [1, 2, 3, 4, 5, 6],
        "loss_mask": [False, False, True, False, False, True],
        "logprobs": pytest.approx([0, 0, -1, 0, 0, np.nan], nan_ok=True),
        "versions": [-1, -1, 4, -1, -1, 4],
        "turns": [0, 1],
    }
    assert not sequence.is_made
    assert sequence.n_sampled == 2


@pytest.mark.parametrize(
    "prompt",
    [[1, 2, 3], [1, 2, 3, 9, 5], [1, 2], [9, 2, 3, 4, 5]],
    ids=["shorter", "another completion", "the same prompt", "compacted"],
)
def test_another_sequence_begins_where_the_prompt_goes_on_with_something_else(buffer, prompt):
    store(buffer, [([1, 2], [3, 4]), (prompt, [6])])
    (rollout,) = taken(buffer).rollouts()
    assert sequences_of(rollout) == [[1, 2, 3, 4], [*prompt, 6]]


def test_the_turns_of_a_sub_agent_are_a_sequence_of_their_own(buffer):
    turns = [([1], [2], "main"), ([7], [8], "sub"), ([1, 2, 3], [4], "main"), ([1, 2], [5], "sub")]
    for step, (prompt, said, agent_id) in enumerate(turns):
        ids = {"task_id": "t", "episode_id": "e", "agent_id": agent_id, "step": step}
        tokens = {"prompt_ids": prompt, "completion_ids": said}
        buffer.add(**ids, **tokens, terminated=step == len(turns) - 1)
    buffer.flush()
    (rollout,) = taken(buffer).rollouts()
    assert sequences_of(rollout) == [[1, 2, 3, 4], [7, 8], [1, 2, 5]]
    assert padded([rollout]).info["agent_id"].tolist() == ["main", "sub", "sub"]


def test_a_turn_that_says_nothing_is_left_out_beside_others(buffer):
    store(buffer, [([1], []), ([1], [2])])
    (rollout,) = taken(buffer).rollouts()
    assert sequences_of(rollout) == [[1, 2]]
    assert len(rollout.turns) == 2


@pytest.mark.parametrize("name", ["logprobs", "loss_mask"])
def test_values_of_another_length_are_refused_by_name(buffer, name):
    store(buffer, [([1], [2, 3], {name: np.array([True])})], "t/é")
    with pytest.raises(FieldError, match=rf"'t/é', turn 0 .*{name} has 1 values for 2 completion"):
        taken(buffer).padded()


def test_a_rollout_knows_how_its_episode_has_ended(buffer):
    store(buffer, [([1], [2])], "t/0", reward=0.0, tools=[])
    store(buffer, [([1], [2], {"reward": 0.5}), ([1], [3], {"reward": 1.5})], "t/1", reward=None)
    store(buffer, [([1], [2])], "t/2", reward=None)
    writer = buffer.episode("t", episode_id="t/3")
    writer.append(prompt_ids=[1], completion_ids=[2])
    writer.abort()
    known = [
        ("t/0", "complete", 0.0, {"tools": []}),
        ("t/1", "complete", 2.0, None),
        ("t/2", "complete", None, None),
        ("t/3", "aborted", None, None),
    ]
    batch = taken(buffer, incomplete="include")
    for _ in range(2):
        found = [
            (each.episode_id, each.status, each.reward, each.meta) for each in batch.rollouts()
        ]
        assert found == known
        batch.ack()  # then its rows leave the buffer


def test_drawn_tasks_have_rollouts_also_after_pickling(buffer_url, make_buffer):
    with make_buffer(buffer_url, fields=LLM_FIELDS, track_samples=True) as buffer:
        for key, group_id in (("t/0", "a"), ("t/1", "b"), ("t/2", "a")):
            store(buffer, [([1], [2])], key, reward=float(key[-1]), group_id=group_id)
        buffer.add(task_id="single", prompt_ids=[1], completion_ids=[2], reward=7.0)
        tasks = buffer.sample_tasks(2)
        for drawn in (tasks, pickle.loads(pickle.dumps(tasks)), buffer.batch(tasks.batch_id)):
            found = {each.episode_id: each for each in drawn.rollouts()}
            groups = {key: each.group for key, each in found.items()}
            assert groups["t/0"] == groups["t/2"] != groups["t/1"] != groups[None]
            rewards = {key: each.reward for key, each in found.items()}
            assert rewards == {"t/0": 0.0, "t/1": 1.0, "t/2": 2.0, None: 7.0}
            batch = drawn.padded()
            assert sorted(batch.reward.tolist()) == [0, 1, 2, 7]
            by_reward = dict(zip(batch.reward.tolist(), batch.advantage.tolist(), strict=True))
            assert by_reward[1] == by_reward[7] == 0
            assert by_reward[2] == -by_reward[0] > 0
        assert buffer.sample_tasks(1, condition=QueryBuilder().eq("task_id", "?")).rollouts() == []


def test_single_rows_of_a_lease_are_no_groups(buffer):
    store(buffer, [([1], [2])])
    batch = buffer.lease(1, timeout_s=0).take()
    with pytest.raises(ArgumentError, match="group_by"):
        batch.rollouts()


def test_steps_without_an_episode_are_rollouts(buffer):
    for reward in (0.0, 1.0):
        buffer.add(task_id="t", prompt_ids=[1], completion_ids=[2], reward=reward)
    buffer.flush()
    found = taken(buffer, group_by="task_id").rollouts()
    assert [(each.status, each.reward, each.group) for each in found] == [
        ("complete", 0.0, 0),
        ("complete", 1.0, 0),
    ]


def say(buffer, *steps, key="t/0", **keys):
    with buffer.episode("t", episode_id=key, **keys) as episode:
        for messages, answer in steps:
            said = {"role": "assistant", "content": answer}
            episode.append(messages=messages, actions=[said])


def user(text):
    return {"role": "user", "content": text}


TALK = [([user("hi")], "hm|yes"), ([user("so?")], "no")]


def made_by(buffer, template):
    tokenizer = Characters(template)
    (rollout,) = taken(buffer).rollouts(tokenizer)
    parts = [
        (text_of(each.ids), text_of(each.ids[each.loss_mask]), each.versions.max(), each.is_made)
        for each in rollout.sequences
    ]
    assert all(np.isnan(each.logprobs[each.loss_mask]).all() for each in rollout.sequences)
    return parts, tokenizer


def test_a_tokenizer_makes_the_tokens_that_were_not_stored(buffer):
    say(buffer, *TALK, model_version=3, tools=[{"name": "add"}])
    parts, tokenizer = made_by(buffer, PLAIN)
    whole = "<user>hi;<assistant>hm|yes;<user>so?;<assistant>no;"
    assert parts == [(whole, "hm|yes;no;", 3, True)]
    assert tokenizer.tools == [{"name": "add"}]


def test_a_template_that_changes_earlier_answers_makes_several_sequences(buffer):
    say(buffer, *TALK)
    parts, _ = made_by(buffer, FORGETFUL)
    assert parts == [
        ("<user>hi;<assistant>hm|yes;", "hm|yes;", -1, True),
        ("<user>hi;<assistant>yes;<user>so?;<assistant>no;", "no;", -1, True),
    ]


def test_the_mask_of_a_template_counts(buffer):
    say(buffer, *TALK, model_version=3)
    parts, _ = made_by(buffer, MARKED)
    whole = "<user>hi;<assistant>hm|yes;<user>so?;<assistant>no;"
    assert parts == [(whole, "hm|yes;no;", 3, True)]


def test_a_mask_of_a_template_does_not_join_what_it_changes(buffer):
    say(buffer, *TALK)
    marked = MARKED.replace("{{ m.content }};{% endgen", "{{ said(m) }};{% endgen")
    forgetful = (
        "{% macro said(m) %}"
        "{{ m.content if m == messages[-1] else m.content.split('|')[-1] }}{% endmacro %}"
    )
    parts, _ = made_by(buffer, forgetful + marked)
    assert parts == [
        ("<user>hi;<assistant>hm|yes;", "hm|yes;", -1, True),
        ("<user>hi;<assistant>yes;<user>so?;<assistant>no;", "no;", -1, True),
    ]


def test_each_agent_has_a_context_of_its_own(buffer):
    for step, (agent_id, text) in enumerate([("a", "one"), ("b", "two"), ("a", "three")]):
        said = {"role": "assistant", "content": text.upper()}
        keys = {"task_id": "t", "episode_id": "t/0", "agent_id": agent_id, "step": step}
        buffer.add(**keys, messages=[user(text)], actions=[said], terminated=step == 2)
    buffer.flush()
    parts, _ = made_by(buffer, PLAIN)
    assert [part[:2] for part in parts] == [
        ("<user>one;<assistant>ONE;<user>three;<assistant>THREE;", "ONE;THREE;"),
        ("<user>two;<assistant>TWO;", "TWO;"),
    ]


def test_a_context_that_was_compacted_is_a_sequence_of_its_own(buffer):
    system, short = ({"role": "system", "content": text} for text in ("S", "S"))
    said = {"role": "assistant", "content": "A"}
    whole = [system, user("q"), said, user("r")]
    say(buffer, ([system, user("q")], "A"), (whole, "B"), ([short, user("sum")], "C"))
    parts, _ = made_by(buffer, PLAIN)
    assert [part[:2] for part in parts] == [
        ("<system>S;<user>q;<assistant>A;<user>r;<assistant>B;", "A;B;"),
        ("<system>S;<user>sum;<assistant>C;", "C;"),
    ]


def test_only_what_the_agent_did_is_sampled(buffer):
    shot = {"role": "assistant", "content": "shot"}
    say(buffer, ([user("q0"), shot, user("q1")], "answer"))
    parts, _ = made_by(buffer, PLAIN)
    assert [part[1] for part in parts] == ["answer;"]
    with buffer.episode("u", episode_id="u/0") as episode:  # a conversation without actions
        episode.append(messages=[user("q0"), shot, user("q1"), {**shot, "content": "end"}])
    parts, _ = made_by(buffer, PLAIN)
    assert [part[:2] for part in parts] == [
        ("<user>q0;<assistant>shot;<user>q1;<assistant>end;", "shot;end;")
    ]


def test_a_template_gets_the_arguments_of_tools_as_dicts(buffer):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    with buffer.episode("t", episode_id="t/0") as episode:
        episode.append(messages=[user("hi")], actions=[said])
    calls = "{% for c in m.tool_calls %}{{ c.function.arguments.x }}{% endfor %}"
    template = PLAIN.replace("{{ m.content }}", "{{ m.content }}" + calls)
    parts, _ = made_by(buffer, template)
    assert parts[0][1] == "1;"


@pytest.mark.parametrize("wrap", [np.array, lambda ids: [ids], lambda ids: np.array([ids])])
def test_tokenizers_may_return_arrays_and_batches_of_one(buffer, wrap):
    class Wrapped(Characters):
        def apply_chat_template(self, *args, **options):
            made = super().apply_chat_template(*args, **options)
            return {name: wrap(values) for name, values in made.items()}

    say(buffer, *TALK)
    batch = taken(buffer)
    wanted = batch.padded(tokenizer=Characters(MARKED))
    for name, array in batch.padded(tokenizer=Wrapped(MARKED)).items():
        np.testing.assert_array_equal(array, wanted[name])
    Wrapped.apply_chat_template = lambda self, *_args, **_options: "text"
    with pytest.raises(FieldError, match="apply_chat_template of Wrapped returns no list"):
        batch.padded(tokenizer=Wrapped(MARKED))


def test_turns_without_ids_are_made_or_left_out_beside_others(buffer):
    with buffer.episode("t", episode_id="t/0") as episode:
        said, ids = {"role": "assistant", "content": "yo"}, {"prompt_ids": [900]}
        episode.append(**ids, completion_ids=[901], messages=[user("hi")], actions=[said])
        episode.append(messages=[user("so?")], actions=[{**said, "content": "no"}])
    batch = taken(buffer)
    tokens = batch.padded()
    assert tokens.input_ids.tolist() == [[900, 901]]
    assert tokens.n_left_out == 1
    (first, second) = batch.rollouts(Characters())[0].sequences
    assert first.ids.tolist() == [900, 901]
    assert text_of(second.ids) == "<user>hi;<assistant>yo;<user>so?;<assistant>no;"
    assert (first.is_made, second.is_made) == (False, True)
    assert batch.padded(tokenizer=Characters()).n_left_out == 0


def test_an_answer_of_no_tokens_is_no_sequence(buffer):
    store(buffer, [([1, 2], [])], "t/0", reward=0.0)
    store(buffer, [([1, 2], [3])], "t/1", reward=1.0)
    tokens = taken(buffer).padded(scale=None)
    assert tokens.rollout.tolist() == [1]
    assert tokens.advantage.tolist() == [0.5]
    assert tokens.n_left_out == 1


def test_steps_that_have_left_are_counted_and_the_reward_stays(buffer_url, make_buffer):
    with make_buffer(buffer_url, fields=LLM_FIELDS) as buffer:
        turns = [([1], [2], {"reward": 1.0}), ([1], [3], {"reward": 1.0})]
        store(buffer, turns, reward=None)
        (rollout,) = buffer.sample_tasks(1).rollouts()
        assert (rollout.reward, rollout.n_missing) == (2.0, 0)
        buffer.delete([rollout.turns[0].seq])
        (rollout,) = buffer.sample_tasks(1).rollouts()
        assert (rollout.reward, rollout.n_missing, len(rollout.turns)) == (2.0, 1, 1)


def test_rollouts_are_not_made_of_parts_of_rows(buffer_url, make_buffer):
    with make_buffer(buffer_url, fields=LLM_FIELDS) as buffer:
        store(buffer, [([1], [2])])
        with pytest.raises(ArgumentError, match="without fields="):
            buffer.sample_tasks(1, fields=["prompt_ids"]).padded()


def test_ids_of_another_dtype_are_refused(buffer_url, make_buffer):
    with make_buffer(buffer_url, fields={**LLM_FIELDS, "prompt_ids": ("float32", (-1,))}) as buffer:
        store(buffer, [([2.5], [3])])
        with pytest.raises(FieldError, match="token ids are integers"):
            buffer.sample_tasks(1).padded()


def test_a_template_that_says_nothing_about_answers_is_refused(buffer):
    say(buffer, *TALK)
    with pytest.raises(FieldError, match="generation block"):
        made_by(buffer, UNSTABLE)


def test_sampled_tokens_are_never_made_again(buffer):
    store(buffer, [([1], [2])], model_version=1)
    tokenizer = Characters()
    (rollout,) = taken(buffer).rollouts(tokenizer)
    assert sequences_of(rollout) == [[1, 2]]
    assert tokenizer.n_calls == 0


def test_only_the_prompt_is_made_where_only_the_completion_is_stored(buffer):
    with buffer.episode("t", episode_id="e") as episode:
        for question, answer, ids in (("hi", "yo", [900, 901]), ("so?", "no", [902])):
            said = {"role": "assistant", "content": answer}
            episode.append(
                messages=[user(question)],
                actions=[said],
                completion_ids=ids,
                logprobs=[-1.0] * len(ids),
            )
    (rollout,) = taken(buffer).rollouts(Characters())
    first, second = rollout.sequences
    assert text_of(first.ids[:-2]) == "<user>hi;<assistant>"
    assert text_of(second.ids[:-1]) == "<user>hi;<assistant>yo;<user>so?;<assistant>"
    assert [each.ids[each.loss_mask].tolist() for each in (first, second)] == [[900, 901], [902]]
    assert first.logprobs[first.loss_mask].tolist() == [-1.0, -1.0]
    assert first.is_made


def test_missing_ids_without_a_tokenizer_are_an_error_that_says_what_to_do(buffer):
    say(buffer, *TALK)
    store(buffer, [([], [3])], "u/0")
    batch = taken(buffer, 2)
    with pytest.raises(FieldError, match=r"no turn has token ids; store them in .*LLM_FIELDS"):
        batch.padded()
    with pytest.raises(FieldError, match="completion_ids and no prompt_ids"):
        padded([each for each in batch.rollouts() if each.task_id == "u"])
    with pytest.raises(ArgumentError, match="apply_chat_template"):
        batch.rollouts(tokenizer=len)


def random_turns(rng):
    """Return turns, and the sequences that a plain loop makes of them."""
    turns, sequences = [], []
    for place in range(rng.randrange(1, 6)):
        new = [rng.randrange(3) for _ in range(rng.randrange(3))]
        goes_on = sequences and rng.random() < 0.7
        prompt = [*sequences[-1]["ids"], *new] if goes_on else [rng.randrange(3), *new]
        said = [rng.randrange(3) for _ in range(rng.randrange(1, 4))]
        mask = [rng.random() < 0.7 for _ in said] if rng.random() < 0.5 else None
        logprobs = [-rng.random() for _ in said] if rng.random() < 0.8 else None
        version = rng.choice([None, 0, 2])
        turns.append((prompt, said, mask, logprobs, version))
        known = next(
            (each for each in reversed(sequences) if prompt[: len(each["ids"])] == each["ids"]),
            None,
        )
        if known is None:
            known = {"ids": [], "loss_mask": [], "logprobs": [], "versions": [], "turns": []}
            sequences.append(known)
        n_new = len(prompt) - len(known["ids"])
        counts = mask or [True] * len(said)
        probabilities = logprobs or [np.nan] * len(said)
        known["ids"] = [*prompt, *said]
        known["loss_mask"] += [False] * n_new + counts
        known["logprobs"] += [0.0] * n_new + [
            value if counted else 0.0 for value, counted in zip(probabilities, counts, strict=True)
        ]
        known["versions"] += [-1] * n_new + [
            -1 if version is None or not counted else version for counted in counts
        ]
        known["turns"].append(place)
    return turns, sequences


@pytest.mark.parametrize("seed", range(3))
def test_random_rollouts_have_the_sequences_of_a_plain_loop(buffer, seed):
    rng = random.Random(seed)
    wanted = {}
    for number in range(24):
        turns, wanted[f"t/{number:02}"] = random_turns(rng)
        with buffer.episode("t", episode_id=f"t/{number:02}") as episode:
            for prompt, said, mask, logprobs, version in turns:
                given = {"loss_mask": mask and np.array(mask), "logprobs": logprobs}
                given = {name: value for name, value in given.items() if value is not None}
                episode.append(
                    prompt_ids=prompt, completion_ids=said, model_version=version, **given
                )
            episode.end(reward=rng.random())
    batch = taken(buffer)
    rollouts = batch.rollouts()
    assert [each.episode_id for each in rollouts] == list(wanted)
    for rollout in rollouts:
        for sequence, expected in zip(rollout.sequences, wanted[rollout.episode_id], strict=True):
            for name in NAMES:
                values = np.asarray(getattr(sequence, name)).tolist()
                assert values == pytest.approx(expected[name], nan_ok=True), name
    side, length = rng.choice(["left", "right"]), rng.randrange(3, 9)
    truncation = rng.choice(["left", "right"])
    arrays = batch.padded(length, truncation, side, 99)
    flat = [(number, each) for number, r in enumerate(rollouts) for each in wanted[r.episode_id]]
    n_lost = 0
    assert arrays.rollout.tolist() == [number for number, _ in flat]
    longest = arrays.input_ids.shape[1]
    assert longest == min(length, max(len(each["ids"]) for _, each in flat))
    for row, (_, each) in enumerate(flat):
        kept = slice(-length, None) if truncation == "left" else slice(length)
        n = len(each["ids"][kept])
        n_lost += sum(each["loss_mask"]) - sum(each["loss_mask"][kept])
        part, rest = slice(longest - n, None), slice(longest - n)
        if side == "right":
            part, rest = slice(n), slice(n, None)
        for name, values, filling in (
            ("input_ids", each["ids"][kept], 99), ("attention_mask", [1] * n, 0),
            ("position_ids", range(n), 0), ("loss_mask", each["loss_mask"][kept], False),
            ("logprobs", each["logprobs"][kept], 0), ("versions", each["versions"][kept], -1),
        ):  # fmt: skip
            assert arrays[name][row, part].tolist() == pytest.approx(list(values), nan_ok=True)
            assert set(arrays[name][row, rest].tolist()) <= {filling}
    assert arrays.n_lost == n_lost
    assert arrays.n_cut == sum(len(each["ids"]) > length for _, each in flat)
