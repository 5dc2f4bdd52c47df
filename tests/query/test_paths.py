"""The fields a condition may name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer.errors import ConditionError
from sqlbuffer.query.tree import FIELDS, MAX_PATH_SEGMENTS, parse_field
from tests.query.strategies import key_segment
from tests.support.payloads import keys


@pytest.mark.parametrize(
    ("name", "column", "kind"),
    [
        ("exp_meta.task_id", "task_id", "text"),
        ("exp_meta.task_name", "task_name", "text"),
        ("exp_meta.agent_id", "agent_id", "text"),
        ("exp_meta.step", "step", "int"),
        ("exp_meta.execute_time", "execute_time", "real"),
        ("exp_meta.pre_agent", "pre_agent", "text"),
        ("exp_meta.episode_id", "episode_id", "text"),
        ("exp_meta.model_version", "model_version", "int"),
        ("exp_meta.session_id", "session_id", "text"),
        ("exp_data.state", "state", "json"),
        ("exp_data.actions", "actions", "json"),
        ("exp_data.messages", "messages", "json"),
        ("exp_data.extra", "extra", "json"),
        ("exp_data.reward_t", "reward_t", "real"),
        ("exp_data.adv_t", "adv_t", "real"),
        ("exp_data.v_t", "v_t", "real"),
        ("exp_data.terminated", "terminated", "bool"),
        ("exp_data.truncated", "truncated", "bool"),
        ("id", "id", "text"),
        ("seq", "seq", "int"),
        ("episode_id", "episode_id", "text"),
        ("model_version", "model_version", "int"),
        ("session_id", "session_id", "text"),
        ("terminated", "terminated", "bool"),
        ("truncated", "truncated", "bool"),
        ("task_id", "task_id", "text"),
        ("task_name", "task_name", "text"),
        ("agent_id", "agent_id", "text"),
        ("step", "step", "int"),
        ("execute_time", "execute_time", "real"),
        ("pre_agent", "pre_agent", "text"),
        ("state", "state", "json"),
        ("actions", "actions", "json"),
        ("messages", "messages", "json"),
        ("extra", "extra", "json"),
        ("reward", "reward_t", "real"),
        ("reward_t", "reward_t", "real"),
        ("adv_t", "adv_t", "real"),
        ("v_t", "v_t", "real"),
    ],
)
def test_each_field_is_a_column(name, column, kind):
    field = parse_field(name)
    assert (field.name, field.column, field.kind, field.path) == (name, column, kind, ())


@pytest.mark.parametrize(
    ("path", "segments"),
    [
        (".info.level", ("info", "level")),
        ("[0]", (0,)),
        (".[0]", (0,)),
        ("[-1].x", (-1, "x")),
        (".tags[0][1]", ("tags", 0, 1)),
        (".tags.0.x", ("tags", 0, "x")),
        ('."a.b"."0"', ("a.b", "0")),
        ('.""', ("",)),
        (r'."say \"hi\" \\ there"', (r'say "hi" \ there',)),
        ('."two\nlines"."\\\n"', ("two\nlines", "\n")),
        (".01.-1.1e3.0x1", ("01", "-1", "1e3", "0x1")),
        (".a b-c/d$é", ("a b-c/d$é",)),
        (".1234567890", ("1234567890",)),
        (".٣", ("٣",)),
    ],
)
def test_paths_have_keys_indexes_and_quoted_keys(path, segments):
    for column in ("state", "actions", "messages", "extra"):
        for prefix in ("exp_data.", ""):
            field = parse_field(f"{prefix}{column}{path}")
            assert (field.column, field.kind, field.path) == (column, "json", segments)


@pytest.mark.slow
@given(st.lists(keys, min_size=1, max_size=4))
def test_every_key_can_be_named_by_quoting_it(path):
    assert parse_field("exp_data.state" + "".join(map(key_segment, path))).path == tuple(path)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("taskid", "task_id"),
        ("exp_data.task_id", "exp_meta.task_id"),
        ("exp_meta.tsk_id", "exp_meta.task_id"),
        ("Step", "step"),
        ("exp_meta.Step", "exp_meta.step"),
        ("rewards", "reward"),
        ("exp_meta.reward_t", "exp_data.reward_t"),
        ("exp_data.reward", "exp_data.reward_t"),
        ("exp_data.action", "exp_data.actions"),
        ("stat", "state"),
        ("statee.x", "state"),
        ("exp_data.statee.x", "exp_data.state"),
        ("sequence", "seq"),
    ],
)
def test_an_unknown_field_names_the_nearest_known_ones(name, nearest):
    with pytest.raises(ConditionError, match="did you mean") as caught:
        parse_field(name)
    assert nearest in str(caught.value)


def test_a_declared_field_is_meant_before_a_short_name():
    field = parse_field("v_t", {"v_t": True})
    assert (field.column, field.path) == ("fields", ("v_t",))


def test_a_field_like_no_other_names_all():
    with pytest.raises(ConditionError) as caught:
        parse_field("zzz")
    assert all(name in str(caught.value) for name in FIELDS)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "exp_data",
        "exp_meta",
        "exp_meta.step.x",
        "id.x",
        "exp_data.reward_t[0]",
        " exp_meta.step",
        "EXP_META.STEP",
        "exp_meta.to_dict",
        "__class__",
        "buffer_id",
        "arrays",
        "exp_meta.step; DROP TABLE experiences",
        "exp_meta.step' OR '1'='1",
        "x" * 1_000_000,
    ],
    ids=lambda name: name[:40],
)
def test_nothing_else_is_a_field(name):
    with pytest.raises(ConditionError, match="unknown field"):
        parse_field(name)


@pytest.mark.parametrize(
    "path",
    [".", "..a", ".a.", "[", "[x]", "[1", "[1.5]", "[]", '."a', '."a"b', "[1]a", '."a"]', "[٣]"],
)
def test_malformed_paths_are_refused_with_their_place(path):
    with pytest.raises(ConditionError, match=r"malformed path .* at position \d+"):
        parse_field(f"exp_data.state{path}")


@pytest.mark.parametrize("name", [None, 1, b"id", ["id"], ("exp_meta", "step")])
def test_a_field_is_named_by_text(name):
    with pytest.raises(ConditionError, match="field is text that names a field"):
        parse_field(name)


def test_paths_have_a_limited_number_of_indexes_and_segments():
    assert len(parse_field("exp_data.state" + "[0]" * 4).path) == 4
    assert len(parse_field("exp_data.state" + ".a" * MAX_PATH_SEGMENTS).path) == MAX_PATH_SEGMENTS
    with pytest.raises(ConditionError, match="more than 4 list indexes"):
        parse_field("exp_data.state" + "[0]" * 5)
    with pytest.raises(ConditionError, match="more than 100 segments"):
        parse_field("exp_data.state" + ".a" * 50_000)
