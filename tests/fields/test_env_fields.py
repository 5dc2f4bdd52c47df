"""What the spaces of an environment mean as typed fields."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sqlbuffer import ReplayBuffer, fields_from_env
from sqlbuffer.errors import FieldError


class Env(gymnasium.Env):
    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space


PIXELS = spaces.Box(0, 255, (8, 8, 3), np.uint8)
POSE = spaces.Box(-1, 1, (3,), np.float64)


def shown(env, **options):
    with ReplayBuffer("sqlite://", **fields_from_env(env, **options)) as buffer:
        fields = {name: str(spec) for name, spec in buffer.fields.items()}
        return fields, buffer.observation_fields


@pytest.mark.parametrize(
    ("observation", "action", "fields"),
    [
        (PIXELS, spaces.Discrete(3), {"obs": "uint8(8, 8, 3)", "action": "int64"}),
        (POSE, spaces.MultiDiscrete([3, 4]), {"obs": "float64(3,)", "action": "int64(2,)"}),
        (spaces.Discrete(5), spaces.MultiBinary(4), {"obs": "int64", "action": "int8(4,)"}),
        (
            spaces.Dict({"image": PIXELS, "arm": spaces.Dict({"pose": POSE})}),
            spaces.Tuple((spaces.Discrete(2), POSE)),
            {
                "obs_arm_pose": "float64(3,)",
                "obs_image": "uint8(8, 8, 3)",
                "action_0": "int64",
                "action_1": "float64(3,)",
            },
        ),
        (
            spaces.Dict(
                {"front camera": PIXELS, "größe": POSE, "2": POSE, "lens": POSE, "π²": POSE}
            ),
            spaces.Text(7),
            {
                "obs_2": "float64(3,)",
                "obs_front_camera": "uint8(8, 8, 3)",
                "obs_größe": "float64(3,)",
                "obs_lens_": "float64(3,)",
                "obs_π_": "float64(3,)",
                "action": "U7",
            },
        ),
        (
            spaces.Tuple([spaces.Graph(POSE, spaces.Discrete(3)), spaces.Graph(POSE, None)]),
            spaces.Sequence(spaces.Dict({"at": POSE, "name": spaces.Text(5)})),
            {
                "obs_0_nodes": "float64(-1, 3)",
                "obs_0_edges": "int64(-1,)",
                "obs_0_edge_links": "int32(-1, 2)",
                "obs_1_nodes": "float64(-1, 3)",
                "action_at": "float64(-1, 3)",
                "action_name": "U5(-1,)",
            },
        ),
    ],
)
def test_each_part_of_a_space_is_a_field(observation, action, fields):
    found, observed = shown(Env(observation, action))
    assert found == fields
    assert observed == tuple(name for name in fields if name.startswith("obs"))


def test_the_next_observation_is_declared_when_asked_for():
    found, observed = shown(Env(POSE, spaces.Discrete(2)), next_observation=True)
    assert found == {"obs": "float64(3,)", "action": "int64", "next_obs": "float64(3,)"}
    assert observed == ("obs",)


def test_a_vectorized_environment_has_the_fields_of_one():
    env = gymnasium.make_vec("CartPole-v1", num_envs=3)
    assert shown(env)[0] == {"obs": "float32(4,)", "action": "int64"}
    env.close()


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.OneOf([POSE, PIXELS]), "a space OneOf cannot be stored; it takes Box, Discrete"),
        (spaces.Sequence(spaces.Sequence(POSE)), "a space Sequence inside a Sequence or Graph"),
        (spaces.Sequence(spaces.Graph(POSE, None)), "a space Graph inside a Sequence or Graph"),
        (
            spaces.Dict({(1, 2): POSE}),
            r"the key \(1, 2\) of a space Dict is neither text without NUL",
        ),
        (spaces.Dict({"a\0": POSE}), "the key 'a.x00' of a space Dict"),
        (spaces.Text(3, charset="a\0"), "a space Text whose characters include a surrogate or NUL"),
    ],
)
def test_a_space_that_cannot_be_stored_is_refused_by_the_name_of_its_field(space, message):
    with pytest.raises(FieldError, match=f"field 'obs_odd': {message}"):
        fields_from_env(Env(spaces.Dict({"odd": space}), spaces.Discrete(2)))


def test_two_keys_of_one_name_are_refused():
    with pytest.raises(FieldError, match="two parts of the space would be the field 'obs_a_b'"):
        fields_from_env(Env(spaces.Dict({"a b": POSE, "a_b": POSE}), POSE))


def test_the_arguments_are_not_the_fields(tmp_path):
    found = fields_from_env(Env(PIXELS, POSE))
    hint = r"write ReplayBuffer\(url, \*\*fields_from_env\(env\)\)"
    for name in ("fields", "meta_fields"):
        with pytest.raises(FieldError, match=hint):
            ReplayBuffer(f"sqlite:///{tmp_path}/replay.db", **{name: found})
    assert list(tmp_path.iterdir()) == []
