"""The names of DI-engine's module `utils`."""

from sqlbuffer.compat.ding.monitors.sampled_attributes import SampledDataAttrMonitor, TickTime
from sqlbuffer.compat.ding.monitors.throughput_controller import ThruputController
from sqlbuffer.compat.ding.monitors.throughput_monitor import PeriodicThruputMonitor
from sqlbuffer.compat.ding.used_data_remover import UsedDataRemover

__all__ = [
    "PeriodicThruputMonitor",
    "SampledDataAttrMonitor",
    "ThruputController",
    "TickTime",
    "UsedDataRemover",
    "generate_id",
]


def generate_id(name: str, data_id: int) -> str:
    """Return the id of the item of a number.

    Example:
        >>> generate_id("buffer", 3)
        'buffer_3'
    """
    return f"{name}_{data_id}"
