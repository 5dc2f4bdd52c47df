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


def test_a_space_of_no_fixed_size_is_refused_by_the_name_of_its_field():
    with pytest.raises(FieldError, match="field 'obs_text': a space Text has no fixed size"):
        fields_from_env(Env(spaces.Dict({"text": spaces.Text(5)}), spaces.Discrete(2)))


def test_the_arguments_are_not_the_fields(tmp_path):
    found = fields_from_env(Env(PIXELS, POSE))
    hint = r"write ReplayBuffer\(url, \*\*fields_from_env\(env\)\)"
    for name in ("fields", "meta_fields"):
        with pytest.raises(FieldError, match=hint):
            ReplayBuffer(f"sqlite:///{tmp_path}/replay.db", **{name: found})
    assert list(tmp_path.iterdir()) == []
