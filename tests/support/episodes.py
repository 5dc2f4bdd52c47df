"""Episodes made by a rule, and what a learner should get of them, in plain numpy."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from sqlalchemy import text

from sqlbuffer import ReplayBuffer
from tests.support.sql import buffer_id, connected, delete_steps

FIELDS = {"obs": ("float32", (2,)), "action": "int64"}
FINAL_T = 1_000  # the t that a final observation shows


@dataclass(frozen=True)
class Made:
    """An episode.

    Attributes:
        n: Its steps.
        end: What its last step says: terminated, truncated, or nothing (cut).
        final: Whether it has a final observation.
        status: What is noted of it.
        gone: Steps that were deleted.
    """

    n: int
    end: str = "terminated"
    final: bool = False
    status: str = "complete"
    gone: frozenset[int] = field(default=frozenset())

    @property
    def is_ended(self) -> bool:
        return self.status == "complete"

    def held(self, t: int) -> bool:
        return 0 <= t < self.n and t not in self.gone


MADE = st.builds(
    Made,
    st.integers(1, 6),
    st.sampled_from(["terminated", "truncated", "cut"]),
    st.booleans(),
    st.sampled_from(["complete", "complete", "open", "aborted"]),
    st.frozensets(st.integers(0, 5), max_size=2),
)
EPISODES = st.lists(MADE, min_size=1, max_size=4)


def observation(episode: int, t: int) -> Any:
    return np.array([episode, t], np.float32)


def reward(episode: int, t: int) -> float:
    return 1.0 + episode + 0.1 * t


def arrays_of(number: int, made: Made, **more: Any) -> dict[str, Any]:
    """Return the columns of an episode."""
    last = np.arange(made.n) == made.n - 1
    return {
        "obs": np.stack([observation(number, t) for t in range(made.n)]),
        "action": np.arange(made.n),
        "reward": [reward(number, t) for t in range(made.n)],
        "terminated": last & (made.end == "terminated"),
        "truncated": last & (made.end == "truncated"),
        **more,
    }


def store(buffer: ReplayBuffer, url: str, episodes: list[Made], **more: Any) -> None:
    """Store the episodes e0, e1, ... with the seq that follow each other, whatever was there."""
    for number, made in enumerate(episodes):
        final = {"obs": observation(number, FINAL_T)} if made.final else None
        buffer.store_episode(arrays_of(number, made, **more), episode_id=f"e{number}", final=final)
    number_of_buffer = buffer_id(url, buffer.name)
    with connected(url) as connection:
        for number, made in enumerate(episodes):
            if made.status == "open":
                nothing = ", final_arrays = NULL, length = NULL, last_seq = NULL"
            else:
                nothing = ""
            connection.execute(
                text(
                    f"UPDATE episodes SET status = :status{nothing} "
                    "WHERE buffer_id = :buffer AND key = :key"
                ),
                {"status": made.status, "buffer": number_of_buffer, "key": f"e{number}"},
            )
            for t in made.gone:
                delete_steps(
                    connection,
                    "buffer_id = :buffer AND t = :t AND episode_id IN "
                    "(SELECT id FROM episodes WHERE buffer_id = :buffer AND key = :key)",
                    buffer=number_of_buffer,
                    t=t,
                    key=f"e{number}",
                )


def empty(buffer: ReplayBuffer, url: str) -> None:
    """Take all rows and episodes away."""
    buffer.clear()
    with connected(url) as connection:
        connection.execute(text("DELETE FROM episodes"))
