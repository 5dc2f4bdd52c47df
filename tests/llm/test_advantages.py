import numpy as np
import pytest

from sqlbuffer.errors import ArgumentError
from sqlbuffer.llm import group_advantages


def test_the_default_is_the_advantage_of_grpo() -> None:
    # Mean 0.5; squared differences 4 x 0.25, divided by 3: the deviation is 0.57735.
    wanted = 0.5 / (np.sqrt(1 / 3) + 1e-6)
    values = group_advantages([1, 0, 0, 1], [7, 7, 7, 7])
    assert values.tolist() == pytest.approx([wanted, -wanted, -wanted, wanted], rel=1e-12)
    assert values.dtype == np.float64


def test_scale_none_leaves_the_difference_from_the_mean() -> None:
    assert group_advantages([3, 0, 0], ["a"] * 3, scale=None).tolist() == [2.0, -1.0, -1.0]


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    # 3 against (0 + 1) / 2, 0 against (3 + 1) / 2, 1 against (3 + 0) / 2
    values = group_advantages([3, 0, 1], [0, 0, 0], "leave_one_out", None)
    assert values.tolist() == pytest.approx([2.5, -2.0, -0.5])
    # The same deviation: that of 3, 0 and 1, which is sqrt(7 / 3).
    scaled = group_advantages([3, 0, 1], [0, 0, 0], "leave_one_out")
    assert scaled.tolist() == pytest.approx(values / (np.sqrt(7 / 3) + 1e-6))


def test_groups_do_not_mix_and_a_group_of_one_or_of_equal_rewards_is_exactly_0() -> None:
    values = group_advantages([1, 5, 0, 0.1, 0.1, 0.1], ["a", "b", "a", "c", "c", "c"])
    assert values[[1, 3, 4, 5]].tolist() == [0.0] * 4
    assert values[0] == -values[2] > 0


def test_a_rollout_without_a_reward_does_not_count_in_its_group() -> None:
    for none in (np.nan, None):
        values = group_advantages([1, none, 0, none], [0, 0, 0, 1], scale=None)
        assert values[[0, 2]].tolist() == [0.5, -0.5]
        assert np.isnan(values[[1, 3]]).all()


def test_tensors_of_torch_are_taken_as_arrays_are() -> None:
    torch = pytest.importorskip("torch")
    rewards = torch.tensor([1.0, 0, 1, 0], requires_grad=True)
    values = group_advantages(rewards, torch.tensor([0, 0, 1, 1]), scale=None)
    assert values.tolist() == [0.5, -0.5, 0.5, -0.5]


def test_no_rollouts_have_no_advantages() -> None:
    assert group_advantages([], []).shape == (0,)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["std", None])
def test_random_groups_agree_with_a_loop(baseline: str, scale: str | None) -> None:
    rng = np.random.default_rng(3)
    rewards, groups = rng.normal(size=60), rng.integers(0, 12, 60)
    wanted = []
    for i, reward in enumerate(rewards):
        siblings = rewards[groups == groups[i]]
        others = np.delete(rewards, i)[np.delete(groups, i) == groups[i]]
        compared = siblings.mean() if baseline == "mean" else others.mean() if len(others) else 0
        deviation = siblings.std(ddof=1) + 1e-6 if scale and len(siblings) > 1 else 1.0
        wanted.append((reward - compared) / deviation if len(siblings) > 1 else 0.0)
    values = group_advantages(rewards, groups, baseline, scale)  # type: ignore[arg-type]
    assert values.tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("rewards", "groups", "options", "message"),
    [
        ([1.0], [0, 1], {}, "1 rewards, 2 groups"),
        ([np.inf], [0], {}, "finite"),
        (["good"], [0], {}, "a list of numbers"),
        ([[1.0]], [0], {}, r"shape \(1, 1\)"),
        ([1.0], [[0]], {}, "a list of numbers or texts"),
        ([1.0], [0], {"baseline": "median"}, "mean"),
        ([1.0], [0], {"scale": "max"}, "std"),
    ],
)
def test_mistakes_are_named(rewards, groups, options, message) -> None:
    with pytest.raises(ArgumentError, match=message):
        group_advantages(rewards, groups, **options)
