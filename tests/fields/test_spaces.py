"""The spaces of an environment are stored with a buffer, and come back."""

import asyncio
import json
import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer import BufferConfig, ReplayBuffer, fields_from_env
from sqlbuffer.aio import AsyncReplayBuffer
from sqlbuffer.errors import FieldError
from sqlbuffer.interchange import export_parquet, import_parquet
from sqlbuffer.spaces import Spaces, values_of_one

BOX = spaces.Box(-1, 1, (3,))
GO = spaces.Discrete(4)
FIELDS = {"obs": ("float32", (3,)), "action": "int64"}
SPACES = {"observation": BOX, "action": GO}

shapes = st.sampled_from([(), (1,), (3,), (2, 40), (5, 4, 3)])
dtypes = st.sampled_from(["float16", "float32", "float64", "uint8", "int8", "int64", "uint64"])


@st.composite
def boxes(draw):
    dtype, shape = np.dtype(draw(dtypes)), draw(shapes)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    if draw(st.booleans()):
        if dtype.kind == "f":
            low, high = draw(st.sampled_from([(-np.inf, np.inf), (-0.1, 1e4), (0, np.inf)]))
        else:
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), shape, dtype)
    low = rng.integers(0, 50, shape).astype(dtype)
    high = (low + rng.integers(0, 50, shape)).astype(dtype)
    if dtype.kind == "f":
        low = np.where(rng.random(shape) < 0.3, -np.inf, low / 3).astype(dtype)
        high = np.where(rng.random(shape) < 0.3, np.inf, high).astype(dtype)
    return spaces.Box(low, high, shape, dtype)


def multi_discrete(shape, seed):
    rng = np.random.default_rng(seed)
    starts = rng.integers(-3, 3, shape) if seed % 2 else None
    return spaces.MultiDiscrete(rng.integers(1, 9, shape), start=starts)


fixed = st.one_of(
    boxes(),
    st.builds(spaces.Discrete, st.integers(1, 99), dtype=st.just(np.int16)),
    st.builds(spaces.Discrete, st.integers(1, 10**12), start=st.integers(-5, 5)),
    st.builds(multi_discrete, st.sampled_from([(2,), (3, 3), (80,)]), st.integers(0, 9)),
    st.builds(spaces.MultiBinary, st.sampled_from([4, (4,), (2, 3)])),
    st.builds(
        spaces.Text, st.integers(2, 50), min_length=st.integers(0, 2), charset=st.just("äb c")
    ),
    st.builds(spaces.Text, st.integers(1, 50)),
)
varying = st.one_of(
    st.builds(spaces.Sequence, fixed, stack=st.booleans()),
    st.builds(spaces.Graph, boxes(), st.one_of(st.none(), boxes())),
)
keys = st.one_of(st.sampled_from(["image", "front camera", "größe", "lens", ""]), st.just(3))
nested = st.recursive(
    st.one_of(fixed, varying),
    lambda parts: st.one_of(
        st.builds(spaces.Tuple, st.lists(parts, min_size=1, max_size=3)),
        st.lists(st.tuples(keys, parts), min_size=1, max_size=3, unique_by=lambda p: p[0]).map(
            spaces.Dict
        ),
    ),
    max_leaves=6,
)


@pytest.mark.thorough
@given(nested, fixed)
def test_json_brings_every_space_back(observation, action):
    made = Spaces(observation, action)
    again = Spaces(**json.loads(json.dumps(made.to_json())))
    assert (again.observation, again.action) == (observation, action)
    assert repr(again.observation) == repr(observation)
    assert again == made == pickle.loads(pickle.dumps(again))
    assert repr(again) == repr(made)
    if isinstance(observation, spaces.Box):
        for bound in ("low", "high"):
            np.testing.assert_array_equal(
                getattr(again.observation, bound), getattr(observation, bound)
            )
        assert again.observation.dtype == observation.dtype


def test_large_bounds_are_stored_in_few_bytes():
    low = np.zeros((84, 84, 3), np.uint8)
    even = spaces.Box(0, 255, (84, 84, 3), np.uint8)
    low[40:] = 7
    uneven = spaces.Box(low, np.full_like(low, 255), low.shape, np.uint8)
    sizes = [len(json.dumps(Spaces(space, GO).to_json())) for space in (even, uneven)]
    assert sizes[0] < 150
    assert sizes[1] < 300


def test_a_buffer_keeps_its_spaces(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, spaces=SPACES) as buffer:
        assert (buffer.spaces.observation, buffer.spaces.action) == (BOX, GO)
        assert buffer.config.fields.spaces == Spaces(BOX, GO)
        buffer.extend({"obs": np.zeros((2, 3)), "action": [1, 2]})
    with ReplayBuffer(buffer_url) as again:
        assert (again.spaces.observation, again.spaces.action) == (BOX, GO)
        config = again.config
        again.add_field("logp", ("float32", (), 0.0))
        assert again.spaces.action == GO
        with ReplayBuffer(buffer_url, "copy", config=again.config) as copy:
            assert again.copy_to(copy).n_copied == 2
    assert BufferConfig.model_validate_json(config.model_dump_json()) == config
    for same in (ReplayBuffer(buffer_url, "copy"), ReplayBuffer(buffer_url, "of", config=config)):
        with same:
            assert same.spaces.observation == BOX
    with ReplayBuffer(buffer_url, fields=FIELDS, spaces={"observation": BOX, "action": GO}):
        pass
    with ReplayBuffer(buffer_url, "none", fields=FIELDS) as plain:
        assert plain.spaces is None


def test_every_kind_of_space_goes_through_a_database_and_files(buffer_url, tmp_path):
    tiny = np.float64(5e-324)
    observation = spaces.Dict(
        {
            "größe 1": spaces.Box(
                np.array([-np.inf, -tiny]), np.array([np.inf, 1.7e308]), (2,), "f8"
            ),
            "uint": spaces.Box(0, 2**64 - 1, (), np.uint64),
            "note": spaces.Text(9, charset="ä'\"\\\n"),
            "graph": spaces.Graph(BOX, spaces.Discrete(3, start=-7)),
            2: spaces.Tuple([spaces.Sequence(BOX, stack=True), spaces.MultiDiscrete([[2, 3]])]),
        }
    )
    declared = fields_from_env(SimpleNamespace(observation_space=observation, action_space=GO))
    with ReplayBuffer(buffer_url, "one", **declared) as buffer:
        buffer.extend({name: [one[0]] for name, one in values(declared, observation).items()})
        export_parquet(buffer, tmp_path / "files")
    with ReplayBuffer(buffer_url, "one") as again:
        assert again.spaces.observation == observation
        assert again.sample_arrays(1).obs[2][1].shape == (1, 1, 2)
    import_parquet(tmp_path / "files", buffer_url, "imported")
    with ReplayBuffer(buffer_url, "imported") as imported:
        assert imported.spaces == declared["spaces"]
        assert imported.sample_arrays(1).obs["note"].shape == (1,)


def values(declared, observation):
    found = {"action": np.array([0])}
    return found | values_of_one(declared["spaces"].fields_of("obs"), observation.sample())


def test_a_buffer_for_asyncio_has_them_too(buffer_url):
    async def use():
        async with await AsyncReplayBuffer.open(buffer_url, fields=FIELDS, spaces=SPACES) as buffer:
            assert buffer.spaces.action == GO

    asyncio.run(use())


def test_other_spaces_than_the_stored_ones_are_an_error_that_names_both(buffer_url):
    ReplayBuffer(buffer_url, fields=FIELDS, spaces=SPACES).close()
    other = {"observation": BOX, "action": spaces.Discrete(5)}
    message = (
        r"the action space is stored as Discrete\(4\), and was given as Discrete\(5\); omit the "
        r"fields to use the stored ones"
    )
    with pytest.raises(FieldError, match=message):
        ReplayBuffer(buffer_url, fields=FIELDS, spaces=other)
    with pytest.raises(FieldError, match=r"spaces go with fields=.*; leave both out to reopen"):
        ReplayBuffer(buffer_url, spaces=SPACES)


def test_a_buffer_that_was_made_without_spaces_takes_those_of_the_first_who_gives_some(buffer_url):
    ReplayBuffer(buffer_url, fields=FIELDS).close()
    with ReplayBuffer(buffer_url) as older, ReplayBuffer(buffer_url, fields=FIELDS) as plain:
        assert older.spaces is plain.spaces is None
    with ReplayBuffer(buffer_url, fields=FIELDS, spaces=SPACES) as buffer:
        assert buffer.spaces.action == GO
        buffer.add_field("more", ("int8", (), 0))
        assert buffer.spaces.action == GO
    with ReplayBuffer(buffer_url) as buffer:
        assert buffer.spaces.action == GO
    other = {"observation": BOX, "action": spaces.Discrete(5)}
    with pytest.raises(FieldError, match="and was given as Discrete"):
        ReplayBuffer(buffer_url, fields=FIELDS, spaces=other)


def test_a_process_that_only_reads_has_the_spaces_for_itself(sqlite_url):
    ReplayBuffer(sqlite_url, fields=FIELDS).close()
    with ReplayBuffer(f"{sqlite_url}?mode=ro", fields=FIELDS, spaces=SPACES) as reader:
        assert reader.spaces.action == GO
    with ReplayBuffer(sqlite_url) as buffer:
        assert buffer.spaces is None


def test_the_order_of_keys_and_characters_does_not_count():
    one = spaces.Dict([("a", BOX), ("b", spaces.Text(3, charset="xyz"))])
    other = spaces.Dict([("b", spaces.Text(3, charset="zyx")), ("a", BOX)])
    assert Spaces(one, GO) == Spaces(other, GO)
    assert Spaces(one, GO) != Spaces(one, BOX)


@pytest.mark.parametrize(
    ("declared", "wrong", "message"),
    [
        ({"obs": ("float32", (3,))}, SPACES, "spaces: field 'action' is declared as nothing"),
        ({**FIELDS, "obs": ("float32", (4,))}, SPACES, r"'obs' is declared as float32\(4,\)"),
        ({**FIELDS, "action": "U3"}, SPACES, "'action' is declared as U3, .* have int64 there"),
        (FIELDS, BOX, "spaces is a dict of the spaces 'observation' and 'action', got"),
        (FIELDS, {"observation": BOX}, "spaces is a dict of the spaces"),
        (FIELDS, {"observation": BOX, "action": 4}, "the space of 'action' is a gymnasium space"),
        (FIELDS, {"observation": {"type": "Bix"}, "action": GO}, "not the JSON of a space"),
        (FIELDS, {"observation": {"type": "Box"}, "action": GO}, "not the JSON of a space"),
        (FIELDS, {"observation": {"type": "Dict", "spaces": 3}, "action": GO}, "not the JSON of"),
    ],
)
def test_wrong_spaces_are_refused_before_a_buffer_is_made(sqlite_url, declared, wrong, message):
    with pytest.raises(FieldError, match=message):
        ReplayBuffer(sqlite_url, fields=declared, spaces=wrong)


WITHOUT_GYMNASIUM = """
import sys
sys.modules["gymnasium"] = None
from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import MissingExtraError
with ReplayBuffer(sys.argv[1]) as buffer:
    batch = buffer.sample_arrays(2)
    print(sorted(batch.obs), buffer.config.fields.spaces)
    try:
        buffer.spaces
    except MissingExtraError as error:
        print(error)
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_program_without_gymnasium_uses_the_buffer(sqlite_url):
    given = {"observation": spaces.Dict({"a b": BOX, "c": GO}), "action": GO}
    fields = {"obs_a_b": ("float32", (3,)), "obs_c": "int64", "action": "int64"}
    with ReplayBuffer(sqlite_url, fields=fields, spaces=given) as buffer:
        buffer.extend({"obs_a_b": np.zeros((2, 3)), "obs_c": [1, 2], "action": [1, 2]})
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_GYMNASIUM, sqlite_url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "['a b', 'c'] Spaces(Dict('a b': Box(-1.0, 1.0, (3,), float32), 'c': Discrete(4)), "
        "Discrete(4))",
        "buffer.spaces needs gymnasium; run `pip install gymnasium`",
    ]
