"""The difference of two conversations has all of both, at a bounded cost."""

from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer.web.transcript import MOST_LINES, Said, ToolCall, difference

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
