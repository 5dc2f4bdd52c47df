"""The order of an episode's steps is the same for all readers, also where rows come late."""

import random

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import OutOfOrderError
from sqlbuffer.interchange.hugging_face import RolloutRows
from sqlbuffer.orm import Episode
from sqlbuffer.storage.database.engine import resolve_url
from tests.support.sql import run

INSERT = (
    "INSERT INTO v_experiences (buffer, id, task_id, agent_id, episode_id, step, messages, reward) "
    "VALUES ('default', '{0}', 't', 'a', '{1}', {2}, '[\"{0}\"]', {3})"
)


class Model:
    """The rows of episodes in the order in which readers are to see them."""

    def __init__(self):
        self.rows = {}  # by episode: (step, number of arrival, name), in order
        self.by_arrival = set()
        self.with_gaps = set()
        self.n = 0

    def add(self, episode, rows, *, numbered):
        of_episode = self.rows.setdefault(episode, [])
        if not numbered:
            self.by_arrival.add(episode)
        for step, name in rows:
            self.n += 1
            of_episode.append((step, self.n, name))
        by_arrival = episode in self.by_arrival
        of_episode.sort(key=lambda row: row[1] if by_arrival else row[:2])

    def names(self, episode):
        return [name for _, _, name in self.rows.get(episode, ())]

    def forget(self, name):
        for episode, rows in self.rows.items():
            self.rows[episode] = [row for row in rows if row[2] != name]
            if len(self.rows[episode]) < len(rows):
                self.with_gaps.add(episode)


def reward_of(name):
    """Return a reward that tells a step from all others."""
    number, place = name.split(".")
    return int(number) + int(place) / 8


def orders_of(buffer, url, episode):
    """Return the order that each reader gives to the steps of an episode, by names of steps."""
    engine = create_engine(resolve_url(url))
    with Session(engine) as session:
        stored = session.query(Episode).filter_by(episode_id=episode)
        by_orm = [step.id for one in stored for step in one.steps]
    engine.dispose()
    ordered = f"SELECT id FROM v_experiences WHERE episode_id = '{episode}' ORDER BY t"
    # Rows without an answer: the questions are the messages.
    conversations = RolloutRows(buffer, "conversations")
    names = {row.exp_data.reward_t: row.id for row in buffer}
    trajectories = {
        key: rewards[mask].tolist()
        for batch in buffer.loader("trajectory", 8, epochs=1, include_partial=True)
        for key, rewards, mask in zip(
            batch.info["episode"], batch["reward"], batch["mask"], strict=True
        )
    }
    return {
        "task": [
            row.id for row in buffer.get_by_task_id("t") if row.exp_meta.episode_id == episode
        ],
        "view": [id_ for (id_,) in run(url, ordered)],
        "orm": by_orm,
        "conversation": [
            message["content"]
            for one in conversations
            if one["episode_id"] == episode
            for message in one["messages"]
        ],
        "trajectory": [names[reward] for reward in trajectories.get(episode, ())],
    }


@pytest.mark.combinations
@pytest.mark.parametrize("seed", range(3))
def test_readers_agree_with_a_model_after_each_way_to_store_rows(buffer_url, seed):
    rng, model = random.Random(seed), Model()
    with ReplayBuffer(buffer_url) as buffer:
        for number in range(27):
            episode = rng.choice("efgh")
            numbered = episode != "h" or rng.random() < 0.8
            rows = [
                (rng.randrange(12) if numbered else 0, f"{number}.{i}")
                for i in range(rng.choice([1, 1, 1, 3]))
            ]
            way = rng.randrange(4)
            if way == 0 and numbered:
                for step, name in rows:
                    run(buffer_url, INSERT.format(name, episode, step, reward_of(name)))
            elif way == 1 and numbered:
                buffer.extend(
                    {
                        "messages": [[name] for _, name in rows],
                        "id": [name for _, name in rows],
                        "step": [step for step, _ in rows],
                        "reward": [reward_of(name) for _, name in rows],
                    },
                    episode_id=episode, task_id="t",
                )  # fmt: skip
            elif way == 2 and len(rows) == 1:
                name = rows[0][1]
                step = {"reward": reward_of(name)} | ({"step": rows[0][0]} if numbered else {})
                buffer.add(id=name, messages=[name], episode_id=episode, task_id="t", **step)
            else:
                buffer.store_batch(
                    DataRow(
                        ExpMeta("t", episode_id=episode, **({"step": s} if numbered else {})),
                        Experience(messages=[name], reward_t=reward_of(name)),
                        id=name,
                    )
                    for s, name in rows
                )
            model.add(episode, rows, numbered=numbered)
            if number % 9 == 8:
                gone = rng.choice([name for e in model.rows for name in model.names(e)])
                buffer.delete(QueryBuilder().eq("id", gone).build())
                model.forget(gone)
        for episode in "efgh":
            expected = model.names(episode)
            for reader, order in orders_of(buffer, buffer_url, episode).items():
                if reader == "trajectory" and episode in model.with_gaps:
                    continue  # a trajectory has no gap
                assert order == expected, (reader, episode)


def test_a_late_row_takes_its_place_among_the_drawn_ones(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        for step, ends in ((0, False), (3, True), (1, False)):
            buffer.add(
                state=step, step=step, reward=float(step), terminated=ends, episode_id="e",
                task_id="t",
            )  # fmt: skip
        ((status, length),) = run(buffer_url, "SELECT status, length FROM v_episodes")
        assert (status, length) == ("complete", 3)
        buffer.add(state=2, step=2, reward=2.0, episode_id="e", task_id="t")
        loader = buffer.loader("window", 4, length=2, epochs=1, shuffle=False)
        windows = sorted(rewards.tolist() for batch in loader for rewards in batch["reward"])
        assert windows == [[0, 1], [1, 2], [2, 3], [3, 0]]


def test_steps_without_a_number_come_in_the_order_of_their_arrival(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        for words in (["a", "b"], ["c", "d"]):  # each call counts its own steps from 0
            columns = {"messages": [[word] for word in words]}
            buffer.extend(columns, episode_id="e", task_id="t")
        (conversation,) = RolloutRows(buffer)
        assert [message["content"] for message in conversation["messages"]] == list("abcd")
        assert run(buffer_url, "SELECT t, step FROM v_experiences ORDER BY t") == [
            (0, 0), (1, 1), (2, 0), (3, 1),
        ]  # fmt: skip


def test_typed_steps_come_in_order_and_agents_may_share_a_step(buffer_url):
    with ReplayBuffer(buffer_url, fields={"obs": "float32"}) as buffer:
        for agent in ("b", "a"):
            buffer.extend({"obs": [1.0]}, episode_id="e", task_id="t", agent_id=agent, step=4)
        columns = {"obs": [5.0, 6.0, 5.0], "agent_id": ["b", "a", "a"], "step": [5, 6, 5]}
        buffer.extend(columns, episode_id="e", task_id="t")
        expected = [(4, "b"), (4, "a"), (5, "a"), (5, "b"), (6, "a")]
        ordered = "SELECT step, agent_id FROM v_experiences ORDER BY t"
        assert run(buffer_url, ordered) == expected
        with pytest.raises(OutOfOrderError) as error:
            buffer.extend({"obs": [3.0]}, episode_id="e", task_id="t", step=3)
        for part in ("'e'", "step 3", "step 6", "in the order", "without typed fields"):
            assert part in str(error.value)
