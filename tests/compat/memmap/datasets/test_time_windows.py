"""Random windows of episodes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from sqlbuffer.compat.memmap import (  # noqa: E402
    ReplayDatasetTimeWindow,
)
from tests.compat.memmap.datasets.loaded import first  # noqa: E402


def test_windows_lie_within_their_episodes(buffer):
    dataset = ReplayDatasetTimeWindow(buffer, 2, return_indices=True)
    assert len(dataset) == 3
    np.random.seed(0)  # noqa: NPY002
    seen = [first(buffer.dataloader(3, dataset=dataset, return_mask=True)) for _ in range(60)]
    assert {tuple(batch["_start"].tolist()) for batch in seen} == {
        (a, 0, b) for a in range(2) for b in range(4)
    }
    for batch in seen:
        starts = batch["_start"].tolist()
        assert batch["r"].tolist() == [
            [starts[0], starts[0] + 1],
            [3, 0],
            [4 + starts[2], 5 + starts[2]],
        ]
        assert batch["_lens"].tolist() == [2, 1, 2]
        assert batch["_reaches_episode_end"].tolist() == [starts[0] == 1, True, starts[2] == 3]
        assert batch["_mask"].tolist() == [[True, True], [True, False], [True, True]]
    assert (batch["_index"].tolist(), batch["_index"].dtype) == ([0, 1, 2], torch.int64)


def test_windows_are_drawn_from_the_random_numbers_of_numpy(buffer):
    dataset = ReplayDatasetTimeWindow(buffer, 2, fields=("r",), return_indices=True)
    np.random.seed(5)  # noqa: NPY002
    expected = [np.random.randint(0, n) for n in (2, 1, 4, 2, 1, 4)]  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    assert [dataset[i % 3]["_start"].item() for i in range(6)] == expected
    assert list(dataset[0]) == [
        "r",
        "task",
        "z",
        "_lens",
        "_reaches_episode_end",
        "_index",
        "_start",
    ]
    chosen = ReplayDatasetTimeWindow(buffer, 9, filter_meta={"task": 1})
    assert [item["_lens"].item() for item in chosen] == [1]


@pytest.mark.parametrize(
    ("length", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_windows_have_a_length(buffer, length, error):
    with pytest.raises(error, match="window_length"):
        ReplayDatasetTimeWindow(buffer, length)
