"""The filter of the list of episodes: words and conditions in one line."""

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer.errors import ConditionError
from sqlbuffer.fields import FieldSpec
from sqlbuffer.web.filter_bar import MOST_PARTS, EpisodeFilter, parse_filter

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_quoted_texts_are_words_whatever_is_in_them(words):
    text = " ".join('"' + word.replace("\\", r"\\").replace('"', r"\"") + '"' for word in words)
    assert parse_filter(text, {}).words == tuple(words)


@given(st.text())
def test_any_text_is_a_filter_or_says_what_is_wrong(text):
    with suppress(ConditionError):
        wanted = parse_filter(text.strip(), {})
        is_empty = not "".join(text.split()).strip('"')
        assert is_empty or wanted.words or wanted.filters or wanted.tree


PLAIN = st.text(st.characters(categories=["L", "N"], codec="utf-8"), min_size=1, max_size=20)


@given(st.lists(PLAIN, min_size=1, max_size=MOST_PARTS))
def test_plain_words_are_accepted_as_they_are(words):
    wanted = parse_filter(" ".join(words), {})
    assert wanted == EpisodeFilter(words=tuple(words))


@given(TEXTS, st.sampled_from(["episode", "task_id", "agent", "group_id"]))
def test_a_value_in_quotes_is_compared_as_it_is(value, name):
    quoted = '"' + value.replace("\\", r"\\").replace('"', r"\"") + '"'
    (found,) = parse_filter(f"{name} = {quoted}", {}).filters
    assert (found.name, found.comparison, found.value) == (name.removesuffix("_id"), "=", value)


def test_names_of_an_episode_and_of_steps_stand_next_to_words():
    wanted = parse_filter('ant reward>=0.5 state.level!=3 "to do" extra.name="3" model=2', {})
    assert wanted.words == ("ant", "to do")
    assert [(f.name, f.comparison, f.value) for f in wanted.filters] == [
        ("reward", ">=", 0.5),
        ("model", "=", 2),
    ]
    assert wanted.tree == {
        "and_": [
            {"field": "state.level", "op": "ne", "value": 3},
            {"field": "extra.name", "op": "eq", "value": "3"},
        ]
    }


def test_a_declared_field_comes_before_a_value_of_the_episode():
    specs = {"length": FieldSpec("length", np.dtype("int64"), column=True)}
    wanted = parse_filter("length>3", specs)
    assert wanted.filters == ()
    assert wanted.tree == {"field": "length", "op": "gt", "value": 3}


@pytest.mark.parametrize("word", ["a-b/c:d", "x=", "数 据", "<b>", ">", "!=", "..", "'"])
def test_ids_with_signs_can_be_typed_or_quoted(word):
    assert parse_filter(json.dumps(word, ensure_ascii=False), {}).words == (word,)
