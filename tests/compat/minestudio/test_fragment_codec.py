"""Fragments come back as they went in."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sqlbuffer.codec.equality import equal
from sqlbuffer.compat.minestudio import (
    FragmentDataDict,
    FragmentError,
    FragmentIndex,
    FragmentMetadata,
    FragmentNotFoundError,
    FragmentStore,
    FragmentTypeError,
    SampleFragment,
)
from tests.compat.minestudio.fragments import T, make_fragment


@pytest.fixture
def store(buffer_url: str) -> Any:
    store = FragmentStore(url=buffer_url)
    yield store
    store.close()


def assert_same(found: SampleFragment, given: SampleFragment) -> None:
    for each in fields(given):
        assert equal(getattr(found, each.name), getattr(given, each.name), strict=True), each.name


def test_a_fragment_comes_back_with_every_dtype_shape_and_container(store: FragmentStore) -> None:
    given = make_fragment(
        "w-é",
        7,
        obs={
            "image": np.arange(T * 27, dtype=np.uint8).reshape(T, 3, 3, 3)[:, ::-1],
            "nested": {"goal": np.zeros((T, 0)), "text": ["a", "b"], "none": None, "$x": 1},
        },
        action={"camera": np.array([[np.nan, -0.0]] * T), "buttons": np.ones((T, 1), bool)},
        reward=np.array([0.5, -0.0, np.nan, np.inf], np.float32),
        in_state=[(np.ones((2, 3), np.float16), None), [np.int64(3), {"h": np.zeros(())}]],
        next_obs={"image": np.zeros((3, 3, 3), np.uint8), "step": 3, "flag": np.bool_(True)},
        episode_uuids=["a", "a", "b", "a"],
    )
    assert_same(store.get_fragment(store.add_fragment(given)), given)


def test_tensors_come_back_as_tensors_wherever_they_stand(store: FragmentStore) -> None:
    torch = pytest.importorskip("torch")
    state = [
        torch.arange(6, dtype=torch.float32).reshape(2, 3).requires_grad_(),
        (torch.ones(2, dtype=torch.bfloat16), np.ones(2), (torch.tensor(True), None)),
        {"k": torch.zeros(0, dtype=torch.int64)},
    ]
    given = make_fragment(obs=torch.ones(T, 2).T.T, in_state=state)
    found = store.get_fragment(store.add_fragment(given))
    assert torch.equal(found.obs, given.obs)
    first, (second, plain, (flag, none)), mapping = found.in_state
    assert torch.equal(first, state[0].detach())
    assert second.dtype == torch.bfloat16
    assert torch.equal(second, state[1][0])
    assert isinstance(plain, np.ndarray)
    assert torch.equal(flag, torch.tensor(True))
    assert none is None
    assert torch.equal(mapping["k"], state[2]["k"])
    first += 1  # it is memory of its own


def test_reads_only_the_fields_that_are_asked_for(store: FragmentStore) -> None:
    torch = pytest.importorskip("torch")
    given = make_fragment(
        fid=3,
        obs={"image": np.ones((T, 2), np.uint8), "goal": torch.ones(T)},
        in_state=[torch.ones(1), np.zeros(1)],
    )
    id_ = store.add_fragment(given)
    found = store.get_fragment(id_, ["reward", "obs.goal", "action.camera", "episode_uuids"])
    assert equal(found.reward, given.reward, strict=True)
    assert list(found.obs) == ["goal"]
    assert torch.equal(found.obs["goal"], torch.ones(T))
    assert equal(found.action, {"camera": given.action["camera"]}, strict=True)
    assert found.episode_uuids == given.episode_uuids
    assert found.index == given.index
    assert found.in_state is None
    assert found.next_obs is None
    assert found.first is None
    part = store.get_fragment(id_, ["in_state[0]", "worker_uuid"])
    assert torch.equal(part.in_state[0], torch.ones(1))
    assert part.in_state[1] is None


@pytest.mark.parametrize(
    ("names", "message"),
    [(["rewards"], "a fragment has obs"), ("reward", "list of names"), ([3], "unknown field 3")],
)
def test_names_the_fields_where_one_is_unknown(
    store: FragmentStore, names: Any, message: str
) -> None:
    with pytest.raises(FragmentError, match=message):
        store.get_fragment(store.add_fragment(make_fragment()), names)


def test_takes_the_objects_of_minestudio_itself(store: FragmentStore) -> None:
    given = make_fragment()
    theirs = SimpleNamespace(**vars(given))
    assert_same(store.get_fragment(store.add_fragment(theirs)), given)  # type: ignore[arg-type]


def test_names_the_place_of_a_value_that_cannot_be_stored(store: FragmentStore) -> None:
    with pytest.raises(FragmentError, match=r"^obs\.x\[1\]: cannot store"):
        store.add_fragment(make_fragment(obs={"x": [1, object()]}))
    with pytest.raises(FragmentError, match=r"^in_state\[0\]: .* dtype object"):
        store.add_fragment(make_fragment(in_state=[np.array([object()])]))
    with pytest.raises(FragmentTypeError, match="episode_uuids: expected a list of text"):
        store.add_fragment(make_fragment(episode_uuids=[1]))
    with pytest.raises(FragmentTypeError, match="expected a SampleFragment, got dict"):
        store.add_fragment({})  # type: ignore[arg-type]
    of_itself: list[Any] = []
    of_itself.append(of_itself)
    with pytest.raises(FragmentError, match=r"^in_state: contains itself"):
        store.add_fragment(make_fragment(in_state=of_itself))


def test_deletes_fragments_by_id(store: FragmentStore) -> None:
    one, two = store.add_fragment(make_fragment()), store.add_fragment(make_fragment())
    size = store.get_disk_space()
    store.delete_fragment(one)
    assert store.get_disk_space() * 2 == size > 0
    for call in (store.get_fragment, store.delete_fragment):
        with pytest.raises(KeyError) as error:
            call(one)
        assert isinstance(error.value, FragmentNotFoundError)
    with pytest.raises(FragmentTypeError):
        store.get_fragment(None)  # type: ignore[arg-type]
    for no_text in ("a\0", "\ud800"):
        with pytest.raises(FragmentError, match="fragment_id"):
            store.get_fragment(no_text)
    store.clear()
    assert store.get_disk_space() == 0
    with pytest.raises(KeyError):
        store.get_fragment(two)


def test_format_batch_stacks_by_index() -> None:
    torch = pytest.importorskip("torch")
    found = FragmentDataDict()
    for fid in range(2):
        found[FragmentIndex("w", fid)] = {
            "value": np.full((3, 1), fid, np.float32),
            "state": [torch.full((2,), fid), {"n": fid, "name": f"f{fid}"}],
        }
    batch = found.format_batch([make_fragment(fid=1), make_fragment(fid=0)], "cpu")
    assert torch.equal(batch["value"], torch.tensor([[[1.0]] * 3, [[0.0]] * 3]))
    assert torch.equal(batch["state"][0], torch.tensor([[1, 1], [0, 0]]))
    assert torch.equal(batch["state"][1]["n"], torch.tensor([1, 0]))
    assert batch["state"][1]["name"] == ["f1", "f0"]
    with pytest.raises(KeyError):
        found.format_batch([make_fragment(fid=2)], "cpu")


def test_metadata_are_hashable_and_print_logs(caplog: pytest.LogCaptureFixture) -> None:
    assert len({FragmentMetadata(1, "s", "w", 0), FragmentMetadata(1, "s", "w", 0)}) == 1
    with caplog.at_level("INFO", "sqlbuffer"):
        make_fragment(fid=4).print()
    assert "fid_in_worker=4" in caplog.text
    assert "episode_uuids" in caplog.text


def steps(start: int, n: int = T, *, ends: bool = False, **changes: Any) -> SampleFragment:
    """Return a fragment of the steps from one on, each with its number for an observation."""
    torch = pytest.importorskip("torch")
    numbers = np.arange(start, start + n, dtype=np.float32)
    return make_fragment(
        fid=start // n,
        **{
            "obs": {"x": numbers, "deep": {"y": torch.as_tensor(numbers[:, None])}},
            "next_obs": {"x": numbers[-1] + 1, "deep": {"y": torch.tensor([numbers[-1] + 1])}},
            "first": numbers == 0,
            "next_done": (np.arange(n) == n - 1) & ends,
            "episode_uuids": ["e"] * n,
            **changes,
        },
    )


def test_w_contiguity_fragments_tell_whether_steps_between_them_were_discarded() -> None:
    before = steps(0)
    assert steps(T).follows(before)
    assert not steps(2 * T).follows(before)  # another number
    assert not before.follows(steps(T))
    assert not steps(T, worker_uuid="v").follows(before)
    assert not steps(T, obs=steps(T + 1).obs).follows(before)  # a step is missing
    assert not steps(T, obs={}).follows(before)
    assert not steps(T, episode_uuids=["f"] * T).follows(before)
    began = steps(T, episode_uuids=["f"] * T, first=np.arange(T) == 0)
    assert began.follows(steps(0, ends=True))
    assert not began.follows(before)
    assert not steps(T).follows(steps(0, ends=True))
    nan = {"x": np.full(T, np.nan)}
    assert steps(T, obs=nan).follows(steps(0, next_obs={"x": np.nan}))
