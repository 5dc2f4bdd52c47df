import math
from collections.abc import Iterable, Iterator

import pytest

from sqlbuffer import DataRow, Experience, ExpMeta
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.llm.conversations import (
    Conversation,
    ConversationAssembler,
    EpisodeOutcome,
    PreferencePairs,
    RolloutStep,
    conversation,
    messages_row,
    preference_row,
    prompt_completion_row,
)


def step(
    episode: str | None, question: str, answer: str, task: str = "sums", **data: object
) -> DataRow:
    return DataRow(
        ExpMeta(task, agent_id="a", episode_id=episode, model_version=3, session_id="s"),
        Experience(messages=[question], actions=[answer], **data),
    )


def stored(rows: Iterable[DataRow]) -> Iterator[RolloutStep]:
    """Yield steps in the form in which a database has them."""
    for row in rows:
        meta, data, encoder = row.exp_meta, row.exp_data, Encoder()
        payloads = (data.state, data.actions, data.messages, data.extra)
        texts = [encoder.json(value, "value") for value in payloads]
        yield RolloutStep(
            meta.task_id, meta.agent_id, meta.episode_id, meta.step, meta.model_version,
            meta.session_id, row.seq, None, data.terminated, data.truncated, data.reward_t, *texts,
            bytes(encoder.blob),
        )  # fmt: skip


def assembled(
    *batches: list[DataRow], ends: dict[str, EpisodeOutcome] | None = None
) -> list[Conversation]:
    """Return the conversations of steps that are given in batches."""
    with ConversationAssembler(lambda key: (ends or {}).get(key[2] or "")) as assembler:
        done = [one for rows in batches for one in assembler.add(stored(rows))]
        return [*done, *assembler.rest(), *assembler.rest()]


def of(
    task: str, episode: str, answer: str, reward: float | None, prompt: str = "?"
) -> Conversation:
    return conversation([step(episode, prompt, answer, task, reward_t=reward, terminated=True)])


def test_sums_the_rewards_and_keeps_the_keys() -> None:
    rows = [
        step("e", "one", "1", reward_t=0.25),
        step("e", "two", "2", reward_t=0.5, terminated=True),
    ]
    made = conversation(rows)
    assert (made.task_id, made.agent_id, made.episode_id) == ("sums", "a", "e")
    assert (made.reward, made.n_steps, made.model_version, made.session_id) == (0.75, 2, 3, "s")
    assert [message["content"] for message in made.messages] == ["one", "1", "two", "2"]


def test_the_own_reward_of_an_episode_counts_even_if_it_is_zero() -> None:
    rows = [step("e", "one", "1", reward_t=0.25)]
    assert conversation(rows, episode_reward=0.0).reward == 0.0
    assert conversation([step("e", "one", "1")]).reward is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"terminated": True}, "terminated"),
        ({"truncated": True}, "truncated"),
        ({}, "open"),
        ({"terminated": True, "extra": {"stop_reason": "length"}}, "length"),
        ({"terminated": True, "extra": {"finish_reason": "stop"}}, "stop"),
        ({"truncated": True, "extra": {"finish_reason": None}}, "truncated"),
    ],
)
def test_says_why_it_stopped(data: dict[str, object], reason: str) -> None:
    assert conversation([step("e", "one", "1", **data)]).stop_reason == reason


def test_names_the_episode_whose_messages_are_none() -> None:
    row = DataRow(ExpMeta("sums", episode_id="e"), Experience(messages=[{"content": "?"}]))
    with pytest.raises(ValueError, match=r"task 'sums', episode 'e': a message is"):
        conversation([row])


def test_a_state_that_is_a_text_is_the_question() -> None:
    row = DataRow(ExpMeta("sums"), Experience(state="2 + 2?", actions=["4"]))
    assert [message["role"] for message in conversation([row]).messages] == ["user", "assistant"]


def test_assembles_episodes_that_are_written_in_turns() -> None:
    first = [step("x", "x1", "1"), step("y", "y1", "1"), step(None, "n1", "1")]
    second = [step("y", "y2", "2", terminated=True), step("x", "x2", "2", truncated=True)]
    done = assembled(first, second, ends={"y": EpisodeOutcome(9.0, 99, "complete")})
    assert [(one.episode_id, one.n_steps, one.reward, one.status) for one in done] == [
        ("x", 2, None, "open"), ("y", 2, 9.0, "complete"), (None, 1, None, "complete"),
    ]  # fmt: skip
    assert done[2].stop_reason == "complete"
    assert [message["content"] for message in done[0].messages] == ["x1", "1", "x2", "2"]


def test_conversations_that_do_not_end_come_in_the_order_in_which_they_began() -> None:
    batches = [[step(e, f"{e}{i}", "!", reward_t=float("nan")) for e in "bca"] for i in range(4)]
    done = assembled(*batches)
    assert [(one.episode_id, one.n_steps, one.status) for one in done] == [
        ("b", 4, "open"), ("c", 4, "open"), ("a", 4, "open"),
    ]  # fmt: skip
    assert repr([one.reward for one in done]) == "[nan, nan, nan]"


def test_the_prompt_is_all_before_the_first_answer() -> None:
    row = prompt_completion_row(of("sums", "e", "4", 1.0))
    assert isinstance(row, dict)
    assert [message["content"] for message in row["prompt"]] == ["?"]
    assert [message["content"] for message in row["completion"]] == ["4"]
    whole = messages_row(of("sums", "e", "4", 1.0))
    assert whole == {"messages": row["prompt"] + row["completion"], "tools": None}


def test_a_conversation_without_prompt_or_answer_is_no_row() -> None:
    silent = conversation([DataRow(ExpMeta("t"), Experience(messages=["?"]))])
    alone = conversation([DataRow(ExpMeta("t"), Experience(actions=["!"]))])
    numbers = conversation([DataRow(ExpMeta("t"), Experience(actions=[1]))])
    assert prompt_completion_row(silent) == "no answer of the assistant"
    assert prompt_completion_row(alone) == "no prompt"
    assert prompt_completion_row(numbers) == messages_row(numbers) == "no messages"


def chosen(rollouts: list[Conversation], min_margin: float = 0.0) -> PreferencePairs:
    numbered = [
        (number, one.task_id, math.nan if one.reward is None else one.reward)
        for number, one in enumerate(rollouts)
    ]
    return PreferencePairs(numbered, min_margin)


def test_pairs_the_best_with_the_worst_of_a_task() -> None:
    rollouts = [
        of("t1", "a", "bad", 0.0), of("t1", "b", "good", 1.0), of("t1", "c", "fair", 0.5),
        of("t2", "d", "same", 0.5), of("t2", "e", "as good", 0.5),
        of("t3", "f", "alone", 1.0),
        of("t4", "g", "nan", float("nan")), of("t4", "h", "low", 0.1), of("t4", "i", "high", 0.2),
        of("t5", "j", "none", None), of("t5", "k", "nan", float("nan")),
    ]  # fmt: skip
    with chosen(rollouts) as pairs:
        rows = [row for row, *_ in pairs.rows(rollouts)]
        assert pairs.skipped == {
            "rewards do not differ enough": 2, "no ended episode with a reward": 1
        }  # fmt: skip
    assert [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows] == [
        ("good", "bad"), ("high", "low"),
    ]  # fmt: skip
    assert (rows[0]["chosen_reward"], rows[0]["rejected_reward"]) == (1.0, 0.0)
    with chosen(rollouts, min_margin=0.5) as pairs:
        assert pairs.n_pairs == 1


def test_pairs_with_other_prompts_or_the_same_answer_are_counted_and_left_out() -> None:
    rollouts = [
        of("t1", "a", "x", 0.0, "one?"), of("t1", "b", "y", 1.0, "two?"),
        of("t2", "c", "same", 0.0), of("t2", "d", "same", 1.0),
    ]  # fmt: skip
    with chosen(rollouts) as pairs:
        assert list(pairs.rows(rollouts)) == []
        assert pairs.skipped == {"prompts differ": 1, "answers are equal": 1}
    assert preference_row(rollouts[0], rollouts[1]) == "prompts differ"


def test_steps_without_an_episode_begin_again_where_their_number_does_not_rise() -> None:
    rows = [
        DataRow(ExpMeta("sums", step=step), Experience(messages=[f"{i}"], actions=["!"]))
        for i, step in enumerate((0, 1, 0, 1, 1))
    ]
    for batches in ([rows], [[row] for row in rows]):
        assert [(one.n_steps, one.status) for one in assembled(*batches)] == [
            (2, "complete"), (2, "complete"), (1, "complete"),
        ]  # fmt: skip


def test_agents_that_speak_in_turns_are_one_episode() -> None:
    rows = [
        DataRow(
            ExpMeta("debate", agent_id=agent, episode_id="e"),
            Experience(actions=[agent], terminated=agent == "b"),
        )
        for agent in ("a", "b")
    ]
    (done,) = assembled(rows)
    assert (done.agent_id, done.n_steps, len(done.messages)) == ("a", 2, 2)


def test_an_episode_ends_with_its_last_step_also_without_a_flag() -> None:
    first, last = step("e", "one", "1"), step("e", "two", "2")
    first.seq, last.seq = 7, 9
    end = EpisodeOutcome(None, 9, "aborted")
    (done,) = assembled([first], [last], ends={"e": end})
    assert (done.n_steps, done.stop_reason) == (2, "aborted")
