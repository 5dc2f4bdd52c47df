"""Steps with what follows them: the transitions that off-policy learners train on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Integer, Text, bindparam, case, cast, literal, null, select, union_all
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.batches import Batch
from sqlbuffer.errors import FieldError
from sqlbuffer.n_step import Returns, n_step_returns
from sqlbuffer.packing import Layout
from sqlbuffer.specs import Fields
from sqlbuffer.storage import functions as fn
from sqlbuffer.storage import statements
from sqlbuffer.storage.columns import decode_columns, reward_array
from sqlbuffer.storage.models import episodes, experiences
from sqlbuffer.storage.population import Population
from sqlbuffer.storage.types import StepList

NEXT = "next_"
Place = tuple[int, int]  # number of the episode, t

_OWN = len(statements.COLUMNS)


def columns(n_step: int) -> tuple[Any, ...]:
    """Return what is read of a first step: its row, its place, and how its episode ends."""

    def of_episode(what: Any) -> Any:
        return select(what).where(episodes.c.id == experiences.c.episode_id).scalar_subquery()

    is_near = experiences.c.t + n_step >= episodes.c.length
    return (
        *statements.COLUMNS,
        experiences.c.episode_id,
        experiences.c.t,
        of_episode(episodes.c.key).label("episode"),
        of_episode(episodes.c.length).label("length"),
        of_episode(case((is_near, episodes.c.final_arrays))).label("final_arrays"),
    )


@dataclass(frozen=True)
class Successor:
    """What is read of a step that follows."""

    reward: float | None
    terminated: bool
    truncated: bool
    extra: str | None
    arrays: bytes | None


class TransitionReader:
    """Makes transitions of first steps.

    Args:
        fields: The typed fields.
        n_step: How many steps a transition spans at most.
        gamma: Discount of one step.
        compression: How the bytes of arrays are compressed.

    Raises:
        FieldError: No observation field, or one of varying length.
    """

    def __init__(
        self, fields: Fields, n_step: int, gamma: float, compression: str | None = None
    ) -> None:
        self._fields, self._n, self._gamma = fields, n_step, gamma
        observed = {name: fields.specs[name] for name in fields.observations}
        self._layout = Layout(fields.specs, compression)
        self._observation = Layout(observed, compression)
        self._declared = bool(fields.observations) and all(
            NEXT + name in fields.specs for name in fields.observations
        )
        if not fields.observations:
            raise FieldError(
                "transitions need an observation field: declare one named obs, or name it with "
                "observation_fields=[...]"
            )
        for name in fields.observations:
            if fields.specs[name].is_variable:
                raise FieldError(f"field {name!r}: transitions need observations of fixed shape")

    def read(
        self, population: Population, rows: Sequence[Sequence[Any]], names: Sequence[str] | None
    ) -> Batch:
        """Return the transitions that begin with the rows of `columns`, without those whose
        successors are not stored.

        Args:
            population: Where the successors are.
            rows: The first steps.
            names: Which of the fields; all by default.
        """
        following = self._following(population, rows)
        returns = self._returns(rows, following)
        sources = [self._source(row, following, returns, i) for i, row in enumerate(rows)]
        kept = [i for i, source in enumerate(sources) if source is not None and returns.complete[i]]
        first = decode_columns(self._layout, [rows[i][:_OWN] for i in kept], names)
        arrays = {
            name: array
            for name, array in first.items()
            if not name.startswith(NEXT) and name != "truncated"
        }
        arrays |= {
            "reward": returns.reward[kept].astype(np.float32),
            "discount": returns.discount[kept].astype(np.float32),
            "terminated": returns.terminated[kept],
            **self._next([sources[i] for i in kept], names),
        }
        places = [rows[i][_OWN : _OWN + 3] for i in kept]
        info = {
            **first.info,
            "episode": np.array([key for _, _, key in places], object),
            "t": np.array([-1 if t is None else t for _, t, _ in places], np.int64),
            "n_steps": returns.m[kept],
        }
        return Batch(arrays, info)

    def _following(
        self, population: Population, rows: Sequence[Sequence[Any]]
    ) -> dict[Place, Successor]:
        places = [
            (row[_OWN], row[_OWN + 1])
            for row in rows
            if row[_OWN] is not None and row[_OWN + 1] is not None
        ]
        near = {(episode, t + k) for episode, t in places for k in range(1, self._n)}
        last = set() if self._declared else {(episode, t + self._n) for episode, t in places}
        if not near and not last:
            return {}
        own = experiences.c
        arrays = own.arrays if self._declared else cast(null(), own.arrays.type)
        parts = [
            self._steps(population, near - last, arrays),
            self._steps(population, last, own.arrays),
        ]
        found = population.connection.execute(union_all(*parts))
        return {(episode, t): Successor(*rest) for episode, t, *rest in found}

    @staticmethod
    def _steps(population: Population, places: set[Place], arrays: ColumnElement[Any]) -> Any:
        own = experiences.c
        wanted = bindparam(None, sorted(places), StepList(), unique=True)
        return select(
            own.episode_id, own.t, own.reward_t, own.terminated, own.truncated,
            cast(own.extra, Text), arrays,
        ).where(
            fn.is_step(literal(population.buffer_id, Integer()), wanted),
            fn.unindexed(own.seq) > population.low,
        )  # fmt: skip

    def _returns(
        self, rows: Sequence[Sequence[Any]], following: Mapping[Place, Successor]
    ) -> Returns:
        shape = (len(rows), self._n)
        rewards = np.full(shape, np.nan)
        terminated, ended, known = (
            np.zeros(shape, bool),
            np.zeros(shape, bool),
            np.zeros(shape, bool),
        )
        for i, row in enumerate(rows):
            episode, t, _, length, _ = row[_OWN:]
            step: Successor | None = Successor(row[4], row[5], row[6], row[7], None)
            for k in range(self._n):
                if k:
                    step = None if episode is None or t is None else following.get((episode, t + k))
                if step is None:
                    break  # a hole, or the end
                known[i, k] = True
                rewards[i, k] = reward_array([step.reward], [step.extra])[0]
                terminated[i, k] = bool(step.terminated)
                ended[i, k] = bool(step.truncated) or (
                    None not in (t, length) and t + k + 1 >= length
                )
        return n_step_returns(rewards, terminated, ended, known, self._gamma)

    def _source(
        self,
        row: Sequence[Any],
        following: Mapping[Place, Successor],
        returns: Returns,
        i: int,
    ) -> tuple[str, bytes] | None:
        """Return where the observation after the transition is, and its bytes; None: nowhere."""
        episode, t, _, _, final = row[_OWN:]
        last = int(returns.m[i]) - 1
        if self._declared:
            step = row[_OWN - 1] if last == 0 else getattr(
                following.get((episode, (t or 0) + last)), "arrays", None
            )  # fmt: skip
            return None if step is None else ("declared", step)
        if returns.ended[i]:
            if final is not None:
                return "final", final
            return ("zeros", b"") if returns.terminated[i] else None
        after = None if None in (episode, t) else following.get((episode, t + self._n))
        return None if after is None or after.arrays is None else ("row", after.arrays)

    def _next(self, sources: Sequence[Any], names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
        wanted = [
            name
            for name in self._fields.observations
            if names is None or name in names or NEXT + name in names
        ]
        found: dict[str, NDArray[Any]] = {
            NEXT + name: np.zeros(
                (len(sources), *self._fields.specs[name].shape), self._fields.specs[name].dtype
            )
            for name in wanted
        }
        for kind, layout, prefix in (
            ("declared", self._layout, NEXT),
            ("row", self._layout, ""),
            ("final", self._observation, ""),
        ):
            places = [i for i, (source, _) in enumerate(sources) if source == kind]
            if not places:
                continue
            read = layout.unpack([sources[i][1] for i in places], [prefix + n for n in wanted])
            for name in wanted:
                found[NEXT + name][places] = read[prefix + name]
        return found
