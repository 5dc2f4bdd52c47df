"""Run a call in a thread and await its result."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from sqlbuffer import call_threads

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a call in a thread and return its result; a cancelled call stops waiting for others."""
    call = call_threads.start(partial(function, *args, **kwargs))
    try:
        return await asyncio.wrap_future(call.future)
    except asyncio.CancelledError:
        call.cancel()
        raise
