"""Arrays as tensors of torch."""

from typing import Any

import numpy as np

from sqlbuffer.errors import MissingExtraError
from sqlbuffer.extras import install


def as_tensor(array: Any, device: Any) -> Any:
    """Return an array as a tensor on a device, without a copy on the CPU; texts, objects and what
    torch has no dtype for stay arrays.
    """
    import torch

    if isinstance(array, torch.Tensor):
        return array.to(device)
    if not isinstance(array, np.ndarray) or array.dtype.kind in "OSUV":
        return array
    if not (array.dtype.isnative and array.flags.writeable and array.flags.c_contiguous):
        array = np.array(array, array.dtype.newbyteorder("="), order="C")
    try:
        tensor = torch.from_numpy(array)
    except TypeError:
        return array
    return tensor.to(device)


def check_device(device: Any) -> None:
    """Raise unless tensors can be made there.

    Raises:
        MissingExtraError: torch is not installed.
        ValueError: torch has no such device, or it is not there.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError(
            f"tensors on device {str(device)!r} need torch; run {install('torch')}; numpy arrays "
            f"need no device"
        ) from None
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError):
        raise ValueError(
            f"device is one of torch, such as 'cpu' or 'cuda', got {device!r}"
        ) from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}, and torch finds no CUDA here; use device='cpu'")
