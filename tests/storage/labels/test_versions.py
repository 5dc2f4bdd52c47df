"""Which of several versions holds: against a model of ten lines."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.labels.values import Label, in_force, joined, labelled_extra
from tests.conftest import KINDS

NAMES = ("reward_t", "adv_t", "v_t")
KEYS = st.sampled_from(["a", "b", "$c", "own", "$reals", "$none", "$dict"])
VALUES = st.none() | st.booleans() | st.integers(-3, 3) | st.lists(st.integers(0, 1), max_size=1)
EXTRAS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=3)
GIVEN = st.fixed_dictionaries(
    {},
    optional={**dict.fromkeys(NAMES, st.integers(-3, 3).map(float)), "extra": EXTRAS},
).filter(bool)
CALLS = st.lists(
    st.tuples(st.sets(st.integers(1, 3), min_size=1), GIVEN, st.none() | st.integers(-2, 4)),
    max_size=6,
)
OWN: list[dict[str, Any]] = [
    {"reward": 1.0, "extra": {"own": 1}},
    {"reward": float("nan"), "adv_t": float("nan")},
    {"v_t": 0.5, "extra": {7: "seven", "a": -0.0}},
]


class Model:
    """What is said of each row by {version: {name: value}}, and what of it holds."""

    def __init__(self) -> None:
        self.said: dict[int, dict[int, dict[Any, Any]]] = {1: {}, 2: {}, 3: {}}

    def annotate(self, seqs: set[int], values: dict[str, Any], version: int | None) -> None:
        if version is None:
            highest = [max(self.said[seq]) for seq in seqs if self.said[seq]]
            version = max(highest, default=0) + 1
        flat = {name: value for name, value in values.items() if name != "extra"}
        flat |= {("extra", key): value for key, value in values.get("extra", {}).items()}
        for seq in seqs:
            self.said[seq].setdefault(version, {}).update(flat)

    def holds(self, seq: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for version in sorted(self.said[seq]):
            found |= self.said[seq][version]
        return found


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_the_values_of_the_highest_versions_hold(both_urls: dict[str, str], kind: str) -> None:
    buffer = ReplayBuffer(both_urls[kind])

    @settings(max_examples=25 if kind == "sqlite" else 12)
    @given(CALLS)
    def holds(calls: list[Any]) -> None:
        buffer.clear()
        for own in OWN:
            buffer.add(state=0, **own)
        first = min(row.seq or 0 for row in buffer)
        model = Model()
        for seqs, values, version in calls:
            numbers = [first - 1 + seq for seq in seqs]
            assert buffer.annotate(numbers, **values, version=version) == len(seqs)
            model.annotate(seqs, values, version)
        for i, row in enumerate(buffer):
            check(row.exp_data, OWN[i], model.holds(i + 1))

    holds()


def check(data: Any, own: dict[str, Any], late: dict[Any, Any]) -> None:
    for name in NAMES:
        expected = late.get(name, own.get("reward" if name == "reward_t" else name))
        assert getattr(data, name) == pytest.approx(expected, nan_ok=True)
    extra = {key[1]: value for key, value in late.items() if key[0] == "extra"}
    assert data.extra == ({**(own.get("extra") or {}), **extra} if extra else own.get("extra"))


def test_a_key_of_extra_is_none_where_none_was_given() -> None:
    assert joined(Label(extra={"a": 1}), Label(extra={"a": None})).extra == {"a": None}
    assert labelled_extra('{"a":1}', Label(extra={"a": None})) == '{"a":null}'


def test_nothing_is_said_where_no_version_says_anything() -> None:
    assert in_force({}) == Label()
    assert labelled_extra('{"a":1}', Label(reward_t=1.0)) is None
