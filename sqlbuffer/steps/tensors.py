"""Arrays as tensors of torch."""

from typing import Any

import numpy as np

from sqlbuffer.checks import refused
from sqlbuffer.display.short_values import shown
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
        ArgumentError: torch has no such device, or it is not there.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError(
            f"tensors on device {shown(device)} need torch; run {install('torch')}; numpy arrays "
            f"need no device"
        ) from None
    try:
        kind = torch.device(device).type
    except Exception:  # each kind of value has its own error
        raise refused(device, "device", "one of torch, such as 'cpu' or 'cuda'") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise refused(device, "device", "'cpu' here, where torch finds no CUDA")
