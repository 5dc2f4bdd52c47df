"""Episodes as a plain loop plays them, and as the database has them."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from gymnasium import spaces

from sqlbuffer.encoding.columns import decode_step
from sqlbuffer.encoding.packing import Layout
from tests.support.sql import STEPS, run


@dataclass
class Episode:
    """Steps `(observation, action, reward, terminated, truncated)`, and what was observed after the
    last; observations and actions as `{field: value}`.
    """

    steps: list = field(default_factory=list)
    final: dict = field(default_factory=dict)
    status: str = "complete"

    def plain(self):
        """Return it as nested lists, which can be compared."""
        steps = [(listed(obs), listed(action), *rest) for obs, action, *rest in self.steps]
        return self.status, listed(self.final), steps


def listed(values):
    return {name: np.asarray(value).tolist() for name, value in sorted(values.items())}


def flat(name, value, space):
    """Return the parts of a value of a space by the names of their fields."""
    if isinstance(space, spaces.Graph):
        parts = dict(zip(("nodes", "edges", "edge_links"), value, strict=True))
        if space.edge_space is None:
            del parts["edges"], parts["edge_links"]
        none = {"nodes": (), "edges": (), "edge_links": ()}
        return {f"{name}_{key}": none[key] if v is None else v for key, v in parts.items()}
    if isinstance(space, spaces.Sequence) and isinstance(space.feature_space, spaces.Dict):
        keys = space.feature_space
        if space.stack:
            return {f"{name}_{key}": value[key] for key in keys}
        return {f"{name}_{key}": [item[key] for item in value] for key in keys}
    if isinstance(space, spaces.Dict):
        parts = [(key, value[key], space[key]) for key in space]
    elif isinstance(space, spaces.Tuple):
        parts = [(i, part, space[i]) for i, part in enumerate(value)]
    else:
        return {name: np.array(value)}
    return {
        k: v
        for key, part, inner in parts
        for k, v in flat(f"{name}_{key}".replace(" ", "_"), part, inner).items()
    }


def played(env, seed, actions, *, skips_a_step=False, resets_before=()):
    """Play a single environment, reset whenever an episode ends.

    Args:
        env: The environment.
        seed: Of the first reset; the later ones go on with its generator.
        actions: An action for each step.
        skips_a_step: The step after an end is the reset; its action is not used.
        resets_before: Steps before which an episode is cut by a reset.
    """
    episodes, current = [], Episode()
    observed = partial(flat, "obs", space=env.observation_space)
    obs = observed(env.reset(seed=seed)[0])
    awaits_reset = False
    for t, action in enumerate(actions):
        if t in resets_before and not awaits_reset:
            cut(episodes, current, obs)
            current, obs = Episode(), observed(env.reset()[0])
        if awaits_reset:
            obs, awaits_reset = observed(env.reset()[0]), False
            continue
        after, reward, terminated, truncated, _ = env.step(action)
        after = observed(after)
        acted = flat("action", action, env.action_space)
        current.steps.append((obs, acted, float(reward), bool(terminated), bool(truncated)))
        obs = after
        if terminated or truncated:
            current.final = after
            episodes.append(current)
            current, awaits_reset = Episode(), skips_a_step
            if not skips_a_step:
                obs = observed(env.reset()[0])
    cut(episodes, current, obs)
    env.close()
    return episodes


def cut(episodes, episode, obs):
    """End an episode in its middle."""
    if episode.steps:
        *rest, _ = episode.steps[-1]
        episode.steps[-1] = (*rest, True)
        episode.final = obs
        episodes.append(episode)


def stored(url, buffer):
    """Return the episodes of the buffer in the order in which they began."""
    rows = run(
        url,
        "SELECT e.id, e.status, e.final_arrays, e.length, x.t, x.step, x.arrays, x.reward_t, "
        f"x.terminated, x.truncated FROM episodes e JOIN {STEPS} x "
        "ON x.buffer_id = e.buffer_id AND x.episode_id = e.id ORDER BY e.first_seq, e.id, x.seq",
    )
    found, lengths = {}, {}
    final_layout = Layout({name: buffer.fields[name] for name in buffer.observation_fields})
    for id_, status, final, length, t, step, arrays, reward, terminated, truncated in rows:
        episode = found.setdefault(id_, Episode(status=status))
        assert t == step == len(episode.steps)
        values = buffer.decode(bytes(arrays))
        observed = {name: value for name, value in values.items() if not name.startswith("action")}
        acted = {name: value for name, value in values.items() if name.startswith("action")}
        episode.steps.append((observed, acted, reward, bool(terminated), bool(truncated)))
        if final is not None:
            episode.final = decode_step(final_layout, bytes(final), 0, 0)
        lengths[id_] = length
    for id_, length in lengths.items():
        assert length in (None, len(found[id_].steps))
    return list(found.values())


def plain(episodes):
    """Return episodes so that those of two runs can be compared, whatever their order."""
    return sorted((episode.plain() for episode in episodes), key=repr)
