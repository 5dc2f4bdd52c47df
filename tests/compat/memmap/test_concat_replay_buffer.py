"""`ConcatReplayBuffer`: section 1.8 of memmap-replay-buffer's behaviour."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import ConcatDataset  # noqa: E402

from sqlbuffer.compat.memmap import ConcatReplayBuffer, ReplayBuffer  # noqa: E402
from sqlbuffer.errors import InsufficientDataError  # noqa: E402
from tests.compat.memmap.datasets.loaded import SHAPE, fill  # noqa: E402


@pytest.fixture
def folders(tmp_path):
    """Return folders with buffers of two episodes, of none, and of one longer one."""
    lengths = {"a": (2, 3), "b": (), "c": (5,)}
    for number, (name, each) in enumerate(lengths.items()):
        settings = {**SHAPE, "max_timesteps": 9} if name == "c" else SHAPE
        buffer = ReplayBuffer(tmp_path / name, **settings)
        fill(buffer, each, first=100 * number)
        buffer.close()
    return [tmp_path / name for name in lengths]


@pytest.fixture
def both(folders):
    buffer = ConcatReplayBuffer(folders)
    yield buffer
    buffer.close()


def test_counts_are_summed_up(both):
    assert (both.num_episodes, len(both)) == (3, 3)
    assert (both.max_episodes, both.max_timesteps) == (12, 9)
    assert both.fieldnames == {"x", "r", "done", "v"}
    assert both.meta_fieldnames == {"task", "z", "episode_lens", "_initted"}
    assert both.read_only


@pytest.mark.thorough
def test_episodes_come_one_buffer_after_the_other_with_slots_of_their_own(both):
    loader = both.dataloader(2, return_indices=True, return_mask=True)
    first, second = loader
    assert first["r"].tolist() == [[0, 1, 0], [2, 3, 4]]
    assert first["_mask"].tolist() == [[True, True, False], [True, True, True]]
    assert second["r"].tolist() == [[200, 201, 202, 203, 204]]
    assert [batch["_index"].tolist() for batch in loader] == [[0, 1], [0]]
    assert first["_lens"].dtype == torch.int64
    (whole,) = both.dataloader(3)
    assert whole["r"].shape == (3, 5)
    assert whole["task"].tolist() == [0, 1, 0]


def test_steps_and_transitions_of_all_buffers_are_read(both):
    (batch,) = both.dataloader(10, timestep_level=True, return_indices=True)
    assert batch["r"].tolist() == [0, 1, 2, 3, 4, 200, 201, 202, 203, 204]
    assert batch["_indices"][4:7].tolist() == [[1, 2], [0, 0], [0, 1]]
    (batch,) = both.dataloader(9, n_steps=2, sequence_fields=("r",), filter_meta={"task": 0})
    assert batch["r"].tolist() == [0, 200, 201, 202, 203]
    assert batch["n_step_lens"].tolist() == [1, 2, 2, 2, 1]
    shuffled = torch.cat([b["r"] for b in both.dataloader(3, timestep_level=True, shuffle=True)])
    assert sorted(shuffled.tolist()) == [0, 1, 2, 3, 4, 200, 201, 202, 203, 204]


def test_the_dataset_is_one_of_torch(both):
    dataset = both.dataset(timestep_level=True)
    assert isinstance(dataset, ConcatDataset)
    assert len(dataset) == 10
    assert dataset[-1]["r"] == 204.0
    assert [item["r"].item() for item in dataset.__getitems__([9, 0, -6])] == [204.0, 0.0, 4.0]
    with pytest.raises(IndexError, match="10 items"):
        dataset.__getitems__([10])


def test_all_data_is_padded_with_zeros_to_the_longest(both):
    found = both.get_all_data()
    assert found["r"].tolist()[0] == [0, 1, 0, 0, 0]
    assert found["x"].shape == (3, 5, 2)
    # The default lies behind shorter episodes of a buffer, zeros behind its longest.
    assert found["x"][0].tolist() == [[0.0, 0.5], [1.0, 1.5], [-1, -1], [0, 0], [0, 0]]
    assert found["episode_lens"].tolist() == [2, 3, 5]
    assert set(both.get_all_data(("r",))) == {"r"}
    assert both.get_all_data(meta_fields=("task",))["task"].tolist() == [0, 1, 0]


WRITERS = [
    "store",
    "store_batch",
    "store_meta_batch",
    "store_episode",
    "store_datapoint",
    "store_meta_datapoint",
    "store_batch_datapoint",
    "store_batch_meta_datapoint",
    "one_episode",
    "batched_episode",
    "advance_episode",
    "update",
    "clear",
    "reset_",
]


@pytest.mark.slow
def test_nothing_is_written(both):
    for name in WRITERS:
        with pytest.raises(NotImplementedError, match="read-only"):
            getattr(both, name)()
    both.flush()
    assert len(both) == 3


@pytest.mark.slow
def test_buffers_of_no_use_together_are_refused(folders, tmp_path):
    with pytest.raises(ValueError, match="at least one folder"):
        ConcatReplayBuffer([])
    with pytest.raises(ValueError, match="no replay buffer"):
        ConcatReplayBuffer([folders[0], tmp_path / "nowhere"])
    for name, changes, says in (
        ("fields", {"fields": {"x": "float"}}, "same fieldnames"),
        ("meta", {"meta_fields": {"task": "int"}}, "same meta_fieldnames"),
    ):
        ReplayBuffer(tmp_path / name, **{**SHAPE, **changes}).close()
        with pytest.raises(ValueError, match=says):
            ConcatReplayBuffer([folders[0], tmp_path / name])


def test_types_need_not_be_the_same(folders, tmp_path):
    fields = {**SHAPE["fields"], "x": "int"}
    ReplayBuffer(tmp_path / "other", **{**SHAPE, "fields": fields}).close()
    buffer = ConcatReplayBuffer((str(folders[0]), tmp_path / "other"))
    assert len(buffer) == 2
    buffer.close()


def test_nothing_but_empty_buffers_is_empty(folders):
    buffer = ConcatReplayBuffer(folders[1:2])
    assert buffer.get_all_data() == {}
    for call in (buffer.dataset, lambda: buffer.dataloader(2)):
        with pytest.raises(ValueError, match="replay buffer is empty"):
            call()
    buffer.close()


@pytest.mark.thorough
def test_databases_are_read_together_and_what_is_overwritten_is_left_out(buffer_url, tmp_path):
    writer = ReplayBuffer(buffer_url, **SHAPE, circular=True)
    fill(writer, (3, 1, 1, 1))
    other = fill(ReplayBuffer(tmp_path / "other", **SHAPE), (1,), first=90)
    both = ConcatReplayBuffer([buffer_url, tmp_path / "other"])
    dataset = both.dataset(timestep_level=True)
    fill(writer, (1,), first=50)
    assert [item["r"].item() for item in dataset.__getitems__(range(6))] == [50, 3, 4, 5]
    assert [item["r"].item() for item in dataset.__getitems__([1, 6, 0, 5])] == [90, 50, 5]
    with pytest.raises(InsufficientDataError, match="make a new dataset"):
        dataset.__getitems__([1, 2])
    assert np.array_equal(both.get_all_data(("r",))["r"].flatten(), [50, 3, 4, 5, 90])
    for buffer in (both, writer, other):
        buffer.close()
