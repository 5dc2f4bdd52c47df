import warnings
from collections.abc import Iterator

import pytest
import torch

with warnings.catch_warnings():  # those of TorchRL's own modules
    warnings.simplefilter("ignore")
    import torchrl.collectors
    import torchrl.data
    import torchrl.envs
    import torchrl.objectives
    import torchrl.trainers  # noqa: F401


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small networks are faster so, and other tests run at the same time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(before)
