"""The names of AWorld's module `base`."""

from sqlbuffer.compat.aworld.buffer import ReplayBuffer
from sqlbuffer.compat.aworld.common import ActionModel, Observation
from sqlbuffer.compat.aworld.query_filter import QueryCondition
from sqlbuffer.compat.aworld.samplers import RandomTaskSample, Sampler, TaskSampler
from sqlbuffer.compat.aworld.storage.base import Storage
from sqlbuffer.compat.aworld.storage.in_memory import InMemoryStorage
from sqlbuffer.front.converters import Converter, DefaultConverter
from sqlbuffer.query.query_filter import QueryFilter
from sqlbuffer.steps.data_rows import DataRow, Experience, ExpMeta

__all__ = [
    "ActionModel",
    "Converter",
    "DataRow",
    "DefaultConverter",
    "ExpMeta",
    "Experience",
    "InMemoryStorage",
    "Observation",
    "QueryCondition",
    "QueryFilter",
    "RandomTaskSample",
    "ReplayBuffer",
    "Sampler",
    "Storage",
    "TaskSampler",
]
