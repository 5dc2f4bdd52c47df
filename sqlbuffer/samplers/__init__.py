"""Samplers decide which experiences, or tasks, a batch holds."""

from sqlbuffer.samplers.base import Sampler, TaskSampler
from sqlbuffer.samplers.fifo import FifoSampler
from sqlbuffer.samplers.latest import LatestSampler
from sqlbuffer.samplers.prioritized import PrioritizedSampler
from sqlbuffer.samplers.random import RandomSampler
from sqlbuffer.samplers.random_task import RandomTaskSample

__all__ = [
    "FifoSampler",
    "LatestSampler",
    "PrioritizedSampler",
    "RandomSampler",
    "RandomTaskSample",
    "Sampler",
    "TaskSampler",
]
