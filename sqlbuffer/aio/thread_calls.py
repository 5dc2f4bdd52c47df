"""Run a call in a thread, and await its result."""

import asyncio
import builtins
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from sqlbuffer import buffer as sync
from sqlbuffer import call_threads
from sqlbuffer.arguments import SAME, Condition, Rows, Same
from sqlbuffer.buffer import StoreResult
from sqlbuffer.episode_writer import EpisodeWriter as StepWriter
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.front.draw_calls import AnyConverter
from sqlbuffer.front.leasing import Lease as SyncLease
from sqlbuffer.front.leasing import LeasedBatch as SyncBatch
from sqlbuffer.front.prioritising import EPS, PriorityUpdate
from sqlbuffer.rate_limits import FlowState, Policy
from sqlbuffer.samplers import Sampler, TaskSampler
from sqlbuffer.stats import Removed, Stats
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.storage.buffers.open_buffer import RETRY_S
from sqlbuffer.waits import begin_wait
if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.engine import URL

P = ParamSpec("P")


T = TypeVar("T")


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a call in a thread returns; a cancelled one waits no longer for others."""
    call = call_threads.start(partial(function, *args, **kwargs))
    try:
        return await asyncio.wrap_future(call.future)
    except asyncio.CancelledError:
        call.cancel()
        raise
