"""Conditions in memory select what they select by SQL."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.errors import ConditionError, InsufficientDataError
from tests.query import strategies as own
from tests.support.mirrors import drawn_rows, every_row

FIELDS = {
    "obs": ("float32", (2,)),
    "level": {"dtype": "int64", "column": True, "default": 0},
    "small": {"dtype": "uint8", "column": True, "default": 0},
    "loss": {"dtype": "float64", "column": True, "default": 0.5},
    "half": {"dtype": "float32", "column": True, "default": 0.0},
    "solved": {"dtype": "bool", "column": True, "default": False},
    "map": {"dtype": "U8", "column": True, "default": "none"},
    "long": {"dtype": "U300", "column": True, "default": ""},
}
KEYS = ["task_id", "exp_meta.agent_id", "step", "seq", "episode_id", "session_id", "model_version"]
FLAGS = ["terminated", "exp_data.truncated"]
NAMES = [*KEYS, "exp_data.reward_t", *FLAGS, *(name for name in FIELDS if name != "obs")]
HALVES = st.sampled_from([0.0, -0.0, 1.0, 0.1, float("nan"), float("inf"), 1e-7])

rows = st.lists(
    st.builds(
        DataRow,
        st.builds(
            ExpMeta,
            task_id=own.storable_texts,
            agent_id=own.storable_texts,
            step=own.integers,
            model_version=own.optional(own.integers),
            session_id=own.optional(own.storable_texts),
            episode_id=own.optional(own.storable_texts),
        ),
        st.builds(
            Experience,
            reward_t=own.optional(own.floats),
            terminated=own.optional(st.booleans()),
            truncated=own.optional(st.booleans()),
        ),
        fields=st.fixed_dictionaries(
            {"obs": st.just(np.zeros(2, np.float32))},
            optional={
                "level": own.integers,
                "small": st.integers(0, 255),
                "loss": own.floats,
                "half": HALVES.map(np.float32),
                "solved": st.booleans(),
                "map": st.sampled_from([*own.TEXTS, *own.ODD_TEXTS]).filter(lambda x: len(x) < 9),
                "long": st.sampled_from(own.TEXTS),
            },
        ),
    ),
    min_size=3,
    max_size=12,
)


@st.composite
def rows_and_trees(draw):
    """Draw rows, and conditions that speak of what is in them, mostly."""
    # Typed steps of an episode come in order.
    data = sorted(draw(rows), key=lambda row: row.exp_meta.step)
    seen = [value for row in data for value in facts(row) if own.can_be_compared(value)]
    values = own.any_value | st.sampled_from(seen)
    scalar = own.scalars | st.sampled_from([v for v in seen if v is not None] or [0])
    text = own.texts | st.sampled_from([v for v in seen if isinstance(v, str)])
    members = st.lists(values, max_size=5) | st.builds("{}{}{}".format, text, text, text)
    kinds = [
        own.with_value(["eq", "ne"], values),
        own.with_value(["gt", "gte", "lt", "lte"], scalar),
        own.with_value(["between"], st.lists(scalar, min_size=2, max_size=2)),
        own.with_value(["in", "not_in"], members),
        own.with_value(["like", "not_like"], text | values),
        lambda name: st.sampled_from(["is_null", "is_not_null"]).map(
            lambda op: {"field": name, "op": op}
        ),
    ]
    leaves = st.sampled_from(NAMES).flatmap(lambda name: st.one_of([k(name) for k in kinds]))
    trees = st.recursive(
        leaves,
        lambda inner: st.builds(
            lambda key, parts: {key: parts},
            st.sampled_from(["and_", "or_"]),
            st.lists(inner, max_size=4),
        ),
        max_leaves=4,
    )
    return data, draw(st.lists(trees, min_size=10, max_size=10))


def facts(row):
    meta, data = row.exp_meta, row.exp_data
    return [
        *(meta.task_id, meta.agent_id, meta.step, meta.model_version, meta.session_id),
        *(data.reward_t, data.terminated, *row.fields.values()),
    ]


def is_unknown(tree):
    """Return whether a condition asks a reward whether it is None."""
    if "field" not in tree:
        return any(is_unknown(part) for parts in tree.values() for part in parts)
    value = tree.get("value")
    asks = tree["op"] in ("is_null", "is_not_null") or (tree["op"] in ("eq", "ne") and not value)
    lists = tree["op"] in ("in", "not_in") and isinstance(value, (list, tuple)) and None in value
    is_none = asks and value is None
    return tree["field"].endswith("reward_t") and (is_none or lists)


def drawn_seqs(mirror, n, condition):
    whole = RandomSampler(replace=False)
    return sorted(mirror.sample_arrays(n, condition=condition, sampler=whole).info["seq"].tolist())


def assert_same_steps(buffer, mirror, condition):
    expected = sorted(row.seq for row in buffer.get_all(condition))
    if expected:
        assert drawn_seqs(mirror, len(expected), condition) == expected, condition
    with pytest.raises(InsufficientDataError, match=f"asked for 99, and {len(expected)} match"):
        drawn_seqs(mirror, 99, condition)


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        yield buffer


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(rows_and_trees())
def test_random_conditions_select_the_same_steps(buffer, drawn):
    data, trees = drawn
    buffer.clear()
    buffer.store_batch(data)
    with buffer.mirror() as mirror:
        for tree in trees:
            if is_unknown(tree):
                with pytest.raises(ConditionError, match="None and NaN"):
                    mirror.sample_arrays(1, condition=tree)
            else:
                assert_same_steps(buffer, mirror, tree)


def columns(n, first=0):
    t = np.arange(first, first + n)
    return {"obs": np.stack([t, t], 1).astype("f4"), "level": t, "reward": t / 2}


@pytest.mark.parametrize("versions", [[1, None], [1], [None], [2, 1]])
def test_a_list_with_none_selects_the_steps_without_a_value(buffer, versions):
    for version in (1, 2, None):
        buffer.extend(columns(3), model_version=version)
    with buffer.mirror() as mirror:
        assert_same_steps(buffer, mirror, QueryBuilder().in_("model_version", versions))
        assert_same_steps(buffer, mirror, QueryBuilder().not_in("model_version", versions))


def test_first_steps_of_transitions_match_and_the_others_may_be_any(buffer):
    for number in range(4):
        buffer.store_episode(columns(20), episode_id=f"e{number}")  # cut after its last step
    wanted = QueryBuilder().in_("level", [3, 7, 19]).and_().ne("episode_id", "e1")
    for options in ({"n_step": 3}, {"n_step": 2, "stack": {"obs": 3}}):
        expected = every_row(buffer, "transition", condition=wanted, **options)
        assert len(expected) == 6
        with buffer.mirror() as mirror:
            for _ in range(2):  # as drawn, and as planned before
                found = drawn_rows(mirror, "transition", 200, condition=wanted, **options)
                assert found == expected
                mirror.sample_transitions(200, **options)


@pytest.mark.thorough
def test_what_a_condition_selects_changes_with_the_steps(buffer):
    buffer.store_episode(columns(100), episode_id="first")
    high, given_late = QueryBuilder().gte("level", 50), QueryBuilder().eq("reward", 77.0)
    sessions = QueryBuilder().eq("session_id", "s2").and_().is_null("model_version")
    with buffer.mirror(refresh_s=3_600) as mirror:

        def check():
            mirror.refresh()
            for condition in (high, given_late, sessions):
                assert_same_steps(buffer, mirror, condition)

        check()
        buffer.extend(columns(40, 30), session_id="s2")
        check()
        buffer.delete(QueryBuilder().gt("level", 90))
        check()
        buffer.annotate(range(3, 60, 7), reward=77.0)
        check()
        buffer.extend(columns(5, 90), session_id="s2", model_version=3)
        buffer.resize(60)
        check()
        buffer.clear()
        buffer.extend(columns(9, 45))
        check()


def test_quarantined_steps_are_not_drawn_by_a_condition(buffer):
    buffer.extend(columns(10))
    with buffer.mirror(refresh_s=3_600) as mirror:
        odd = QueryBuilder().in_("level", [1, 3, 5])
        assert drawn_seqs(mirror, 3, odd) == [2, 4, 6]
        buffer.quarantine([4])
        mirror.refresh()
        assert drawn_seqs(mirror, 2, odd) == [2, 6]
        with pytest.raises(InsufficientDataError, match=r"and 2 match.*1 in quarantine"):
            drawn_seqs(mirror, 3, odd)


@pytest.mark.parametrize(
    "name", ["state.a", "extra.tags", "task_name", "execute_time", "adv_t", "id", "pre_agent"]
)
def test_columns_that_are_not_in_memory_are_refused_by_name(buffer, name):
    with buffer.mirror() as mirror:
        for draw in (mirror.sample_arrays, mirror.sample_transitions):
            with pytest.raises(ConditionError, match=rf"'{name}' is not in .*buffer\.mirror\(cond"):
                draw(4, condition=QueryBuilder().eq("step", 1).or_().eq(name, 1))


def test_malformed_conditions_are_refused_as_by_the_buffer(buffer):
    with buffer.mirror() as mirror:
        with pytest.raises(ConditionError, match=r"unknown field 'levl'; did you mean level\?"):
            mirror.sample_arrays(4, condition=QueryBuilder().eq("levl", 1))
        with pytest.raises(ConditionError, match=r"'obs' is kept among the arrays.*column=True"):
            mirror.sample_arrays(4, condition=QueryBuilder().eq("obs", 1))
