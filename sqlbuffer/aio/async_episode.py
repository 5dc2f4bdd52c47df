"""`AsyncEpisodeWriter`: write an episode step by step from a coroutine."""

from typing import Any

from sqlbuffer.aio.thread_calls import in_thread
from sqlbuffer.episode_writer import EpisodeWriter as StepWriter
from sqlbuffer.steps.step_arguments import takes, values_of_step


class AsyncEpisodeWriter:
    """`sqlbuffer.EpisodeWriter` for asyncio: `async with await buffer.episode() as episode`.

    Args:
        writer: The writer that does the work.

    Example:
        >>> import asyncio
        >>> from sqlbuffer.aio import AsyncReplayBuffer
        >>> async def main():
        ...     async with await AsyncReplayBuffer.open("sqlite://") as buffer:
        ...         async with await buffer.episode("task-1") as episode:
        ...             await episode.append(state="hello", actions=["say"], reward=1.0)
        ...         return await buffer.size()
        >>> asyncio.run(main())
        1
    """

    def __init__(self, writer: StepWriter) -> None:
        self.sync = writer

    @takes(values_of_step)
    async def append(self, /, **step: Any) -> None:
        """Add a step; see `sqlbuffer.EpisodeWriter.append`."""
        await in_thread(lambda: self.sync.append(**step))

    async def end(self, *, reward: float | None = None, **final: Any) -> None:
        """End the episode and store all of it; see `sqlbuffer.EpisodeWriter.end`."""
        await in_thread(lambda: self.sync.end(reward=reward, **final))

    async def abort(self) -> None:
        """End the episode as aborted; see `sqlbuffer.EpisodeWriter.abort`."""
        await in_thread(self.sync.abort)

    async def __aenter__(self) -> "AsyncEpisodeWriter":
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await in_thread(self.sync.__exit__, *exception)
