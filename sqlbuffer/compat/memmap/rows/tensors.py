"""The same operations on arrays of numpy and tensors of torch."""

import sys
from typing import Any

import numpy as np


def is_tensor(value: Any) -> bool:
    """Return True for a tensor of torch, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def array_or_tensor(value: Any) -> Any:
    """Return a tensor without its graph; anything else as an array."""
    return value.detach() if is_tensor(value) else np.asarray(value)


def copied(value: Any) -> Any:
    """Return a copy of an array or a tensor."""
    return value.clone() if is_tensor(value) else np.array(value)


def stacked(values: list[Any]) -> Any:
    """Return a tensor of tensors; an array where one of the values is not a tensor."""
    if all(map(is_tensor, values)):
        import torch

        return torch.stack(values)
    return np.stack([np.asarray(value.cpu() if is_tensor(value) else value) for value in values])
