"""The plan of a run: its database, its size and its seed."""

from dataclasses import dataclass

BUFFER = "demo"
MODEL_VERSIONS = 5


@dataclass(frozen=True)
class DemoPlan:
    """The plan of one run of the demo; the same plan plays the same episodes.

    Attributes:
        url: The database; its buffer `demo` is emptied first.
        writers: Processes that play and store.
        episodes: Episodes that each of them plays.
        capacity: Largest number of rows of the buffer.
        batch_size: Rows of a sampled batch.
        tasks: Whole tasks of a sampled batch of tasks.
        seed: Seed of the environments, the players and the samplers.
    """

    url: str
    writers: int = 4
    episodes: int = 100
    capacity: int = 20_000
    batch_size: int = 256
    tasks: int = 8
    seed: int = 0

    @property
    def total_episodes(self) -> int:
        """Episodes of all writers, each of them a task."""
        return self.writers * self.episodes

    def model_version(self, episode: int) -> int:
        """Return the version of the model that plays an episode: it improves during the run."""
        return episode * MODEL_VERSIONS // self.episodes
