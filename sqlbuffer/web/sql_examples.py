"""Questions and their SQL, as in the docs on the schema: a test compares the two."""

from dataclasses import dataclass

DEFAULT = "'default'"


@dataclass(frozen=True)
class SqlExample:
    """A question with its SQL.

    Attributes:
        question: In words.
        sql: The statement; it is about the buffer `default` where it names one.
    """

    question: str
    sql: str

    def about(self, buffer: str) -> str:
        """Return the statement for another buffer."""
        name = buffer.replace("'", "''")
        return self.sql.replace(DEFAULT, f"'{name}'")


EXAMPLES = (
    SqlExample(
        "How much does each buffer hold?", "SELECT buffer, rows, capacity, fill FROM v_buffers;"
    ),
    SqlExample(
        "The ten best tasks.",
        "SELECT task_id, steps, total_reward FROM v_tasks\n"
        "WHERE buffer = 'default' ORDER BY total_reward DESC LIMIT 10;",
    ),
    SqlExample(
        "Does a later model earn more?",
        "SELECT model_version, count(*) AS steps, avg(reward) AS mean_reward FROM v_experiences\n"
        "WHERE buffer = 'default' GROUP BY model_version ORDER BY model_version;",
    ),
    SqlExample(
        "On which tasks do the rollouts differ? A task with equal returns teaches nothing.",
        "SELECT task_id, rollouts, return_mean, return_spread FROM v_groups\n"
        "WHERE buffer = 'default' AND rollouts > 1 ORDER BY return_spread DESC;",
    ),
    SqlExample(
        "A value inside JSON; both databases know ->>.",
        "SELECT task_id, step, state ->> 'position' AS position FROM v_experiences\n"
        "WHERE buffer = 'default' ORDER BY seq LIMIT 10;",
    ),
    SqlExample(
        "The ten tasks whose episodes differ most, through an index.",
        "SELECT g.task_id, g.n_rollouts, g.mean, g.spread FROM group_stats g\n"
        "JOIN buffers b ON b.id = g.buffer_id\n"
        "WHERE b.name = 'default' AND g.spread IS NOT NULL ORDER BY g.spread DESC LIMIT 10;",
    ),
    SqlExample(
        "One step by its number. A chunk has at most 256 steps.",
        "SELECT task_id, step, reward FROM v_experiences\n"
        "WHERE buffer = 'default' AND seq = 5 AND first_seq BETWEEN 5 - 255 AND 5;",
    ),
)
