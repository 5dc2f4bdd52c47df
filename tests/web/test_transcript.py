"""Conversations become turns: nothing is lost, repetitions are folded, and any value is shown."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer.web.transcript import (
    FOLDED_CHARS,
    MOST_LINES,
    Said,
    ToolCall,
    Transcript,
    difference,
    excerpts,
    first_line,
    n_repeated,
    pieces,
    printable,
    said_in_step,
    shown_text,
    whole_conversation,
)

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "2 + 2?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "4"}


def texts(step):
    return [turn.text.head for turn in step.turns]


def test_a_context_that_is_given_again_is_folded():
    transcript = Transcript()
    first = transcript.step(1, [SYSTEM, QUESTION], ["4"])
    again = {"role": "assistant", "content": "4"}
    second = transcript.step(2, [SYSTEM, QUESTION, again, "Sure?"], ["Yes."])
    assert (first.n_folded, texts(first)) == (0, ["Be brief.", "2 + 2?", "4"])
    assert (second.n_folded, texts(second)) == (3, ["Sure?", "Yes."])


def test_a_context_is_folded_that_does_not_say_what_the_agent_did():
    transcript = Transcript()
    transcript.step(1, [SYSTEM, QUESTION, CALL], ["add(2, 2)"])
    second = transcript.step(2, [SYSTEM, QUESTION, CALL, RESULT, "Sure?"], ["say"])
    assert (second.n_folded, texts(second)) == (3, ["Sure?", "say"])


def test_a_window_of_the_context_with_the_system_message_is_folded():
    transcript = Transcript()
    transcript.step(1, [SYSTEM, "one"], ["1"])
    transcript.step(2, ["two"], ["2"])
    third = transcript.step(3, [SYSTEM, "two", {"role": "assistant", "content": "2"}, "three"], [])
    assert (third.n_folded, texts(third)) == (3, ["three"])


def test_a_step_before_the_page_folds_what_its_first_step_repeats():
    transcript = Transcript()
    transcript.context([QUESTION], ["4"])
    step = transcript.step(2, [QUESTION, {"role": "assistant", "content": "4"}, "Sure?"], ["Yes."])
    assert (step.n_folded, texts(step)) == (2, ["Sure?", "Yes."])


def test_an_answer_that_the_messages_hold_already_is_shown_once():
    step = Transcript().step(1, [QUESTION, {"role": "assistant", "content": "4"}], ["4"])
    assert texts(step) == ["2 + 2?", "4"]


def test_the_result_of_a_tool_stands_with_its_call():
    transcript = Transcript()
    called = transcript.step(1, [QUESTION], [CALL])
    then = transcript.step(2, [QUESTION, CALL, RESULT], ["It is 4."])
    (call,) = called.turns[1].calls
    assert (call.name, call.arguments.head) == ("add", '{\n  "a": 2,\n  "b": 2\n}')
    assert [result.text.head for result in call.results] == ["4"]
    assert texts(then) == ["It is 4."]


def test_a_result_without_its_call_is_a_turn():
    assert texts(Transcript().step(1, [RESULT], [])) == ["4"]


def test_a_call_that_only_the_context_shows_is_shown_with_its_answer():
    transcript = Transcript()
    first = transcript.step(1, [QUESTION], ["I add."])
    transcript.step(2, [QUESTION, {**CALL, "content": "I add."}, RESULT], ["4"])
    (call,) = first.turns[1].calls
    assert [result.text.head for result in call.results] == ["4"]


def test_parts_of_messages_of_anthropic_are_understood():
    called = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm."},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "u1", "name": "look", "input": {"at": 1}},
        ],
    }
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "u1", "content": "seen"}],
    }
    step = Transcript().step(1, ["?", called, result], None)
    turn = step.turns[1]
    assert (turn.text.head, turn.reasoning.head) == ("I look.", "Hm.")
    assert turn.calls[0].results[0].text.head == "seen"


PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PNG}},
        {"type": "input_image", "image_url": PNG},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
        },
    ],
    ids=["chat", "responses", "anthropic"],
)
def test_images_in_messages_are_shown_next_to_the_text(part):
    asked = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}
    result = {"type": "tool_result", "tool_use_id": "u1", "content": [part]}
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "u1", "name": "look"}]}
    step = Transcript().step(1, [asked, called, {"role": "user", "content": [result]}], None)
    first, second = step.turns
    assert (first.text.head, first.said.images) == ("What is it?", (PNG,))
    assert second.calls[0].results[0].said.images == (PNG,)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.png",
        "data:image/svg+xml;base64,AAAA",
        "data:text/html;base64,AAAA",
        'data:image/png;base64,AA"onerror=',
        "data:image/png;base64," + "A" * 1_000_001,
        None,
        5,
    ],
    ids=["elsewhere", "svg", "page", "quote", "large", "none", "number"],
)
def test_other_addresses_of_images_stay_text(url):
    asked = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    (turn,) = Transcript().step(1, [asked], None).turns
    assert turn.said.images == ()
    assert "image_url" in turn.text.head


def test_an_action_that_the_messages_contain_already_is_shown_once():
    messages = ["?", {**CALL, "content": "I add."}, RESULT]
    assert texts(Transcript().step(1, messages, ["I add."])) == ["?", "I add."]
    assert texts(Transcript().step(1, ["?"], ["I add."])) == ["?", "I add."]


def test_thoughts_in_the_text_are_reasoning():
    step = Transcript().step(1, ["?"], ["<think>\nHm.\n</think>\n42"])
    assert (step.turns[1].text.head, step.turns[1].reasoning.head) == ("42", "Hm.")


def test_all_places_with_a_text_are_found():
    transcript = Transcript("NEEDLE")
    long = "x" * 30_000 + "needle" + "y" * 30_000
    transcript.step(1, ["a needle", "nothing", long], [CALL])
    assert [turn.place for turn in transcript.matches] == [0, 2]
    assert "needle" in transcript.matches[1].excerpts[0]
    assert len(Transcript("add").step(1, [CALL], None).turns) == 1


@pytest.mark.parametrize(
    "messages",
    [
        None, "text", 3, math.nan, {}, {"role": 5}, [[["deep"]]], [None], [{"content": None}],
        [{"role": "user", "content": [{"type": "image_url"}]}], [np.zeros((2, 2))],
        [{"role": "assistant", "content": "", "tool_calls": ["wrong"]}],
        [{"role": "assistant", "tool_calls": 5}], [{"role": "tool"}], b"bytes", {1, 2},
        ["\ud800 lone \x00 \x1b[31m"], [{"role": "\u202eevil", "content": "<script>"}],
        [{"role": "assistant", "content": [{"type": "tool_use", "input": 10**5000}]}],
        [{"role": "user", "content": [{"type": "tool_result"}]}],
    ],
)  # fmt: skip
@pytest.mark.parametrize("actions", [None, "said", [1, 2], [{"policy_info": 3}], [{"name": 1}]])
def test_any_value_is_shown(messages, actions):
    step = Transcript("x").step(1, messages, actions)
    for turn in step.turns:
        assert isinstance(turn.text.head, str)
        assert not set(turn.text.head) & {"\x00", "\x1b", "\ud800"}


def test_deeply_nested_values_are_shown():
    deep = {"role": "user", "content": None}
    for _ in range(100_000):
        deep = [deep]
    assert len(Transcript().step(1, [deep], deep).turns) >= 1


turn_texts = st.lists(st.sampled_from("abc"), max_size=6)


@pytest.mark.thorough
@given(st.lists(st.tuples(turn_texts, turn_texts), max_size=5))
def test_no_text_of_a_step_is_lost(steps):
    shown = whole_conversation((i, *step, None) for i, step in enumerate(steps))
    said = {(turn.said.role, turn.said.text) for turn in shown}
    for messages, answers in steps:
        assert {("user", text) for text in messages} <= said
        assert not answers or ("assistant", "\n".join(answers)) in said


@given(st.lists(st.sampled_from("ab"), max_size=8), st.lists(st.sampled_from("ab"), max_size=8))
def test_the_longest_repetition_is_found(before, new):
    ours, theirs = ([Said("user", text) for text in side] for side in (before, new))
    most = min(len(before), len(new))
    longest = max(n for n in range(most + 1) if before[len(before) - n :] == new[:n])
    assert n_repeated(ours, theirs)[0] == longest


def test_many_messages_alike_take_linear_time():
    same = [Said("user", "a")] * 50_000
    assert n_repeated(same, [*same[1:], Said("user", "b")])[0] == 49_999


def test_long_texts_are_cut_and_the_rest_is_elsewhere():
    text = "line\n" * 100_000
    shown = shown_text(text)
    assert shown.head.count("\n") == 24
    assert shown.head + shown.rest == text[:FOLDED_CHARS]
    assert shown.is_cut
    assert shown.n_lines == 100_001
    assert not shown_text("short").rest
    assert shown_text("x" * 3_000_000).head == "x" * 1_600


def test_short_forms_of_texts():
    assert printable("a\x00b\x1bc\ud800d\u202ee") == "a␀b␛c\ufffdd\ufffde"
    assert first_line("a\n b" * 200).endswith("…")
    assert first_line("a\nb") == "a b"
    assert pieces("aXbxc", "x") == [
        ("a", False),
        ("X", True),
        ("b", False),
        ("x", True),
        ("c", False),
    ]
    assert pieces("a.b", "") == [("a.b", False)]
    assert excerpts("a.b", ".") == ["a.b"]


def test_the_places_of_texts_do_not_depend_on_what_is_folded():
    said = said_in_step([SYSTEM, QUESTION], [CALL])
    step = Transcript().step(1, [SYSTEM, QUESTION], [CALL])
    assert [said[turn.place] for turn in step.turns] == [turn.said for turn in step.turns]


# The difference of two conversations has all of both, at a bounded cost.


words = st.lists(st.sampled_from(["a", "b", "a\nb", ""]), max_size=6)


def said(texts):
    return [Said("user", text) for text in texts]


def lines(found, *kinds):
    return [line.text for turn in found.turns for line in turn.lines if line.kind in kinds]


def test_a_changed_line_stands_between_the_lines_around_it():
    text = "\n".join(f"line {i}" for i in range(20))
    found = difference(said([text]), said([text.replace("line 10", "new")]))
    (turn,) = found.turns
    assert turn.kind == "changed"
    assert [(line.kind, line.text) for line in turn.lines][3:7] == [
        ("same", "line 8"), ("same", "line 9"), ("left", "line 10"), ("right", "new"),
    ]  # fmt: skip
    assert turn.lines[2].text == "6 lines are the same"


def test_turns_of_one_side_are_shown_as_such():
    found = difference(said(["a", "x", "b"]), said(["a", "b", "c"]))
    assert [turn.kind for turn in found.turns] == ["same", "left", "same", "right"]
    assert found.n_same == 2


def test_calls_of_tools_and_thoughts_are_compared_and_ids_are_not():
    def turn(identity, arguments):
        call = ToolCall(identity, "add", arguments)
        return Said("assistant", "", reasoning="hm", calls=(call,))

    assert difference([turn("1", "2")], [turn("9", "2")]).n_same == 1
    assert lines(difference([turn("1", "2")], [turn("9", "3")]), "right") == ["  3"]


@given(words, words)
def test_both_sides_are_whole(left, right):
    found = difference(said(left), said(right))
    n_left = sum(turn.kind != "right" for turn in found.turns)
    n_right = sum(turn.kind != "left" for turn in found.turns)
    assert (n_left, n_right) == (len(left), len(right))


def test_conversations_of_two_megabytes_are_compared_line_by_line():
    left = [f"{i}\n" + "line\n" * 4_000 for i in range(100)]
    right = [*left[:50], left[50] + "more", *left[51:]]
    found = difference(said(left), said(right))
    assert (lines(found, "left"), lines(found, "right")) == ([], ["more"])


def test_lines_that_are_costly_to_compare_are_compared_as_a_whole():
    left = "\n".join(str(i % 7) for i in range(5 * MOST_LINES))
    right = "x\n" + "\n".join(str(i % 11) for i in range(5 * MOST_LINES)) + "\ny"
    found = difference(said([left] * 40), said([right] * 40))
    assert found.is_cut
    assert len(lines(found, "left")) <= 40 * 400
