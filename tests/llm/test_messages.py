import numpy as np
import pytest

from sqlbuffer.llm import answer_messages, joined_messages, normal_message
from sqlbuffer.llm.conversations import prompt_length

QUESTION = {"role": "user", "content": "2 + 2?"}
FOUR = {"role": "assistant", "content": "4"}
SURE = {"role": "user", "content": "Sure?"}
YES = {"role": "assistant", "content": "Yes."}
SYSTEM = {"role": "system", "content": "Be short."}


def test_joins_steps_that_hold_the_whole_context() -> None:
    steps = [([SYSTEM, QUESTION], ["4"]), ([SYSTEM, QUESTION, FOUR, SURE], ["Yes."])]
    assert joined_messages(steps) == [SYSTEM, QUESTION, FOUR, SURE, YES]


def test_joins_steps_that_hold_only_what_is_new() -> None:
    assert joined_messages([([QUESTION], ["4"]), ([SURE], ["Yes."])]) == [QUESTION, FOUR, SURE, YES]


def test_an_answer_that_the_next_step_repeats_is_there_once() -> None:
    steps = [([QUESTION], ["4"]), ([FOUR, SURE], ["Yes."])]
    assert joined_messages(steps) == [QUESTION, FOUR, SURE, YES]


def test_an_answer_that_the_messages_end_with_is_there_once() -> None:
    assert joined_messages([([QUESTION, FOUR], ["4"])]) == [QUESTION, FOUR]


def test_a_context_that_was_rewritten_is_added_to_the_earlier_one() -> None:
    summary = {"role": "user", "content": "So far: 4."}
    steps = [([SYSTEM, QUESTION], ["4"]), ([SYSTEM, summary], ["Yes."])]
    assert joined_messages(steps) == [SYSTEM, QUESTION, FOUR, summary, YES]


def test_a_system_message_before_only_what_is_new_loses_no_turn() -> None:
    steps = [([SYSTEM, {"role": "user", "content": f"q{i}"}], [f"a{i}"]) for i in range(4)]
    said = [message["content"] for message in joined_messages(steps)]
    assert said == ["Be short.", "q0", "a0", "q1", "a1", "q2", "a2", "q3", "a3"]


def test_a_window_of_the_context_loses_no_turn() -> None:
    turns = [
        {"role": role, "content": f"{role[0]}{i}"}
        for i in range(4)
        for role in ("user", "assistant")
    ]
    steps = [([SYSTEM, *turns[max(0, 2 * i - 2) : 2 * i + 1]], [f"a{i}"]) for i in range(4)]
    assert joined_messages(steps) == [SYSTEM, *turns]


def test_an_answer_without_its_reasoning_in_the_next_context_does_not_replace_it() -> None:
    steps = [
        ([SYSTEM, QUESTION], ["<think>2 + 2</think>4"]),
        ([SYSTEM, QUESTION, FOUR, SURE], ["Yes."]),
    ]
    said = [message["content"] for message in joined_messages(steps)]
    assert said == ["Be short.", "2 + 2?", "<think>2 + 2</think>4", "Sure?", "Yes."]


def test_tool_calls_that_only_the_context_has_are_kept() -> None:
    call = {"id": "1", "function": {"name": "add", "arguments": "{}"}}
    given = {"role": "assistant", "content": "I add.", "tool_calls": [call]}
    tool = {"role": "tool", "content": "4", "tool_call_id": "1"}
    steps = [([QUESTION], ["I add."]), ([QUESTION, given, tool], ["4"])]
    joined = joined_messages(steps)
    assert [message["role"] for message in joined] == ["user", "assistant", "tool", "assistant"]
    assert joined[1]["tool_calls"][0]["function"]["name"] == "add"


def test_answers_one_after_the_other_are_all_there() -> None:
    other = {"role": "assistant", "content": "5"}
    assert joined_messages([([FOUR], None), ([other, SURE], None)]) == [FOUR, other, SURE]


def test_the_same_question_twice_is_asked_twice() -> None:
    steps = [([QUESTION], ["4"]), ([QUESTION], ["4"])]
    assert joined_messages(steps) == [QUESTION, FOUR, QUESTION, FOUR]


def test_steps_without_messages_make_no_conversation() -> None:
    assert joined_messages([(None, None), (None, [1, 2]), ([], [{"x": 1}])]) == []


def test_texts_are_messages_of_the_user() -> None:
    assert joined_messages([("Grüße?", ["你好"])]) == [
        {"role": "user", "content": "Grüße?"},
        {"role": "assistant", "content": "你好"},
    ]


def test_parts_that_are_texts_are_joined_and_others_become_json() -> None:
    texts = [{"type": "text", "text": "a"}, "b"]
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert normal_message({"role": "user", "content": texts})["content"] == "a\nb"
    assert normal_message({"role": "user", "content": image})["content"] == (
        '[{"type": "image_url", "image_url": {"url": "x"}}]'
    )
    assert normal_message({"role": "assistant"}) == {"role": "assistant", "content": ""}


PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    ("part", "medium"),
    [
        ({"type": "input_audio", "input_audio": {"data": "UklG"}}, "'input_audio'"),
        ({"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}}, "'video_url'"),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBE"}}, "pdf"),
        ({"inline_data": {"mime_type": "image/png", "data": "iVBO"}}, "'image/png'"),
        ({"type": "tool_result", "content": [{"type": "image", "source": {}}]}, "'image'"),
        ({"type": "picture", "pixels": np.zeros((2, 2))}, r"an array of the shape \(2, 2\)"),
        ({"type": "picture", "raw": b"iVBO"}, "bytes"),
    ],
)
def test_refuses_a_medium_that_would_become_text(part: object, medium: str) -> None:
    content = [{"type": "text", "text": "What is this?"}, part]
    for messages, actions in (
        ([{"role": "user", "content": content}], None),
        ([QUESTION], [{"role": "assistant", "content": content}]),
        ([QUESTION], [part]),
    ):
        with pytest.raises(ValueError, match=f"{medium} in a message would become text"):
            joined_messages([(messages, actions)])


@pytest.mark.parametrize(
    "content",
    [
        f"See {PNG}",
        [{"type": "text", "text": PNG}],
        [{"type": "tool_use", "name": "draw", "input": {"type": "circle", "r": 1.5}}],
        [{"type": "document", "source": {"media_type": "text/plain", "data": "a text"}}],
        [{"type": "score", "value": np.float32(0.5)}],
    ],
)
def test_text_and_values_of_json_stay_text(content: object) -> None:
    (message,) = joined_messages([([{"role": "user", "content": content}], None)])
    assert isinstance(message["content"], str)
    call = {"name": "draw", "arguments": {"image": PNG}}
    assert PNG in str(joined_messages([([QUESTION], [call])])[-1]["tool_calls"])


def test_tool_calls_have_json_texts_as_arguments() -> None:
    call = {"id": 7, "function": {"name": "add", "arguments": {"a": 1}}}
    message = normal_message({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "7", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
        ],
    }


def test_keys_that_no_trainer_reads_are_left_out() -> None:
    message = {"role": "tool", "content": "4", "tool_call_id": 7, "latency": 0.1, "name": "add"}
    assert normal_message(message) == {
        "role": "tool", "content": "4", "tool_call_id": "7", "name": "add",
    }  # fmt: skip


@pytest.mark.parametrize("value", [{"content": "no role"}, {"role": 1}, 3, None, ["x"]])
def test_refuses_what_is_not_a_message(value: object) -> None:
    with pytest.raises(ValueError, match="a message is a dict with a 'role'"):
        normal_message(value)


def test_refuses_a_tool_call_without_a_function() -> None:
    with pytest.raises(ValueError, match="a tool call is a dict with a 'function'"):
        normal_message({"role": "assistant", "tool_calls": ["add(1)"]})


def test_actions_of_aworld_become_one_message_with_tool_calls() -> None:
    actions = [
        {"policy_info": "I add.", "tool_name": "math", "action_name": "add", "params": {"a": 1}},
        {"policy_info": None, "tool_name": None, "params": {}},
    ]
    assert answer_messages(actions) == [
        {
            "role": "assistant",
            "content": "I add.",
            "tool_calls": [
                {
                    "id": None,
                    "type": "function",
                    "function": {"name": "math__add", "arguments": '{"a": 1}'},
                }
            ],
        }
    ]


@pytest.mark.parametrize("actions", [None, [], [None]])
def test_no_action_says_nothing(actions: object) -> None:
    assert answer_messages(actions) == []


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ({"text": "hi"}, "hi"),
        ({"content": "hi"}, "hi"),
        ({"type": "text", "text": "hi"}, "hi"),
        ({"tool": "f"}, '{"tool": "f"}'),
        ([1, 2], "[1, 2]"),
        (1, "1"),
    ],
)
def test_other_actions_in_a_conversation_are_said_as_text(action: object, text: str) -> None:
    assert joined_messages([([QUESTION], [action])]) == [
        QUESTION,
        {"role": "assistant", "content": text},
    ]


def test_an_action_with_a_name_and_arguments_is_a_tool_call() -> None:
    (answer,) = answer_messages(["Let me see.", {"name": "add", "arguments": {"a": 1}}])
    assert answer["content"] == "Let me see."
    assert answer["tool_calls"] == [
        {"id": None, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ]


def test_a_function_call_becomes_a_tool_call() -> None:
    given = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "f", "arguments": "{}"},
    }
    assert normal_message(given)["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_reasoning_is_kept() -> None:
    given = {"role": "assistant", "content": "4", "reasoning_content": "2 and 2", "weight": 0}
    assert normal_message(given) == {
        "role": "assistant", "content": "4", "reasoning_content": "2 and 2",
    }  # fmt: skip


def test_several_texts_are_one_message() -> None:
    assert answer_messages(["a", "b"]) == [{"role": "assistant", "content": "a\nb"}]


def test_the_prompt_ends_before_the_first_answer() -> None:
    assert prompt_length([SYSTEM, QUESTION, FOUR, SURE, YES]) == 2
    assert prompt_length([QUESTION]) is None
