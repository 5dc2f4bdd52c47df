"""`AdvancedReplayBuffer`: draws by priority, with limits of use and staleness."""

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from sqlbuffer.checks import integer_of, real_of
from sqlbuffer.compat.ding.base_buffer import register_buffer
from sqlbuffer.compat.ding.config import checked_count
from sqlbuffer.compat.ding.errors import (
    ItemError,
    MissingListError,
    PriorityError,
    ReplayConfigError,
    ReplayError,
)
from sqlbuffer.compat.ding.items import EncodedItem
from sqlbuffer.compat.ding.naive_buffer import RingBuffer, checked_range, checked_size
from sqlbuffer.compat.ding.prioritized_ring import (
    HeldItems,
    NewItems,
    NewPriority,
    PrioritizedRing,
    PrivateCells,
    SampledItems,
    WantedItems,
)
from sqlbuffer.compat.ding.shared_ring import SharedPrioritizedPlace, opened_buffer
from sqlbuffer.compat.ding.states import file_head, from_file, from_state_dict, to_state_dict
from sqlbuffer.compat.ding.utils import BatchFigures, generate_id, is_first_rank, limit_of
from sqlbuffer.encoding.priority_values import checked_priority
from sqlbuffer.errors import FieldError

logger = logging.getLogger("sqlbuffer")

UNIQUE_ID, INDEX, PRIORITY = "replay_unique_id", "replay_buffer_idx", "priority"
# Keys that a sampled item has in addition to the keys that were pushed.
OWN_KEYS = frozenset({UNIQUE_ID, INDEX, PRIORITY, "use", "staleness", "IS"})


def checked_fraction(value: Any, name: str) -> float:
    """Return a number from 0 to 1."""
    real = real_of(value)
    if real is None or not 0 <= real <= 1:
        raise ReplayConfigError(f"{name} is a number from 0 to 1, got {value!r}")
    return real


def checked_limit(value: Any, name: str, above: float | None = None) -> float | None:
    """Return a limit; None: there is none."""
    real = real_of(value)
    if real is None or math.isnan(real) or real < 0 or (above is not None and real <= above):
        least = "from 0 on" if above is None else f"above {above:g}"
        raise ReplayConfigError(f"{name} is a number {least}, float('inf') for none, got {value!r}")
    return None if real == math.inf else real


def checked_ratio(value: Any) -> float:
    """Return a ratio of at least 1."""
    ratio = real_of(value)
    if ratio is None or not 1 <= ratio < math.inf:
        raise ReplayConfigError(f"sample_min_limit_ratio is a number from 1 on, got {value!r}")
    return ratio


def initial_priority(value: Any, i: int) -> float | None:
    """Return the priority that item i brings; None: it brings none."""
    if value is None:
        return None
    try:
        return checked_priority(value)
    except FieldError as error:
        raise ItemError(f"item {i}: {error}") from None


def new_priorities(info: Any) -> dict[str, NewPriority]:
    """Return the contents of an update's lists, by id."""
    if info is None:
        return {}
    if not isinstance(info, Mapping):
        raise TypeError(f"info is a dict of lists, got {info!r:.100}")
    if PRIORITY not in info:
        return {}
    lists = []
    for key in (UNIQUE_ID, INDEX, PRIORITY):
        if key not in info:
            raise MissingListError(
                f"update takes the lists {UNIQUE_ID!r}, {INDEX!r} and {PRIORITY!r}, as sampled "
                f"items have them; {key!r} is missing"
            )
        lists.append(_listed(info[key]))
        if not isinstance(lists[-1], (list, tuple)):
            raise TypeError(f"{key!r} of an update is a list, got {info[key]!r:.100}")
    priorities: dict[str, NewPriority] = {}
    for i, (raw_id, place, value) in enumerate(zip(*lists, strict=False)):
        try:
            priority = checked_priority(value)
        except FieldError as error:
            raise PriorityError(f"priority of entry {i}: {error}") from None
        number = place if type(place) is int else integer_of(_listed(place))
        id_ = str(raw_id)
        before = priorities.get(id_)
        largest = priority if before is None else max(priority, before.largest)
        priorities[id_] = NewPriority(number, priority, largest)
    return priorities


def _listed(values: Any) -> Any:
    """Return the elements of a list, an array or a tensor."""
    return values.tolist() if hasattr(values, "tolist") else values


def model_version(value: Any, i: int) -> int | None:
    """Return the iteration that an item was collected at: the least one of several."""
    if value is None or (type(value) is int and abs(value) < 2**62):
        return value
    listed = _listed(value)
    several = listed if isinstance(listed, (list, tuple)) else [listed]
    versions = [integer_of(_listed(entry)) for entry in several]
    whole = [version for version in versions if version is not None and abs(version) < 2**62]
    if not versions or len(whole) < len(versions):
        raise ItemError(f"item {i}: collect_iter is an integer or a list of them, got {value!r}")
    return min(whole)


def checked_iteration(value: Any) -> int:
    """Return the learner's iteration."""
    iteration = integer_of(_listed(value))
    if iteration is None:
        raise TypeError(f"cur_learner_iter is an integer, got {value!r}")
    return iteration


def envstep_of(value: Any) -> int:
    """Return the collector's step; -1 where it is not a number."""
    step = integer_of(_listed(value)) if value is not None else None
    return -1 if step is None else step


def is_dict(data: Any) -> bool:
    """Return True for a dict."""
    return isinstance(data, dict)


@register_buffer("advanced")
class AdvancedReplayBuffer(RingBuffer):
    """A ring of dicts that are drawn by priority, within limits of use and staleness.

    The weight of an item is p^alpha. The sum of the weights is divided into equal parts, and one
    item is drawn from each part. So an item repeats only if its weight exceeds a part. An item
    leaves when it was sampled `max_use` times, and before a sample when it is `max_staleness`
    iterations old.

    With a `url`, processes share everything: items, priorities, uses, ids, `push_count`, `beta`,
    and the counts of the rate limit.

    Attributes:
        alpha: Exponent of the priorities.
        check_list: Predicates that an item must pass to be pushed.

    Example:
        >>> buffer = AdvancedReplayBuffer({"replay_buffer_size": 100, "seed": 1})
        >>> buffer.push([{"obs": i, "priority": p} for i, p in enumerate((1.0, 2.0, 8.0))], 0)
        >>> batch = buffer.sample(3, cur_learner_iter=0, sample_range=slice(2, None))
        >>> [(item["obs"], item["priority"], item["use"]) for item in batch]
        [(2, 8.0, 1), (2, 8.0, 2), (2, 8.0, 3)]
        >>> keys = ("replay_unique_id", "replay_buffer_idx")
        >>> info = {key: [item[key] for item in batch] for key in keys}
        >>> buffer.update({**info, "priority": [0.5, 0.5, 2.0]})
        >>> buffer.sample(1, 1, sample_range=slice(-1, None))[0]["priority"]
        2.00001
        >>> buffer.close()
    """

    config: ClassVar[Mapping[str, Any]] = {
        "type": "advanced",
        "replay_buffer_size": 4096,
        "max_use": float("inf"),
        "max_staleness": float("inf"),
        "alpha": 0.6,
        "beta": 0.4,
        "anneal_step": 100_000,
        "enable_track_used_data": False,
        "deepcopy": False,
        "thruput_controller": {
            # Items pushed for each one sampled. Above `max` pushes are refused and their items
            # thrown away; below `min` a sample is None.
            "push_sample_rate_limit": {"max": float("inf"), "min": 0},
            "window_seconds": 30,
            "sample_min_limit_ratio": 1,
        },
        "monitor": {
            "sampled_data_attr": {"average_range": 5, "print_freq": 200},
            "periodic_thruput": {"seconds": 60},
        },
    }

    def __init__(
        self,
        cfg: Any = None,
        tb_logger: Any = None,
        exp_name: str | None = "default_experiment",
        instance_name: str | None = "buffer",
    ) -> None:
        self.check_list: list[Callable[[Any], bool]] = [is_dict]
        super().__init__(cfg, tb_logger, exp_name, instance_name)
        self._envstep = -1

    def _check_config(self) -> None:
        super()._check_config()
        cfg = self._cfg
        self.alpha = checked_fraction(cfg.alpha, "alpha")
        self._first_beta = checked_fraction(cfg.beta, "beta")
        self._anneal_step = checked_count(cfg.anneal_step, "anneal_step", 0)
        self._deepcopy = bool(cfg.deepcopy)
        self._max_use = checked_limit(cfg.max_use, "max_use", above=0)
        self._max_staleness = checked_limit(cfg.max_staleness, "max_staleness")
        control = cfg.thruput_controller
        self._rate_limit = limit_of(control)
        self._least_ratio = checked_ratio(control.sample_min_limit_ratio)
        self._figures = BatchFigures(cfg.monitor.sampled_data_attr)

    @property
    def _ring(self) -> Any:
        """The `PrioritizedRing`."""
        return super()._ring

    def _opened(self, url: str | None, name: str) -> Any:
        if url is None:
            return PrioritizedRing(
                PrivateCells(self._size, self.alpha), self.alpha, self._rate_limit
            )
        settings = {"priorities": True, "alpha": self.alpha}
        buffer = opened_buffer(url, name, "advanced", self._size, **settings)
        if (stored := buffer.config.priorities.alpha) != self.alpha:
            raise ReplayConfigError(
                f"buffer {name!r} at {buffer.url} was made with alpha={stored:g}, not "
                f"{self.alpha:g}; give that one, or another name: {{'name': ...}}"
            )
        place = SharedPrioritizedPlace(buffer, self._size, self._source)
        return PrioritizedRing(place, self.alpha, self._rate_limit)

    def _periodic_seconds(self) -> Any:
        return self._cfg.monitor.periodic_thruput.seconds

    @property
    def beta(self) -> float:
        """The exponent of the next batch's importance weights; set it to change it for every
        process of the buffer.
        """
        kept = self._ring.beta()
        return self._first_beta if kept is None else kept

    @beta.setter
    def beta(self, beta: float) -> None:
        self._ring.set_beta(checked_fraction(beta, "beta"))

    @property
    def _beta_step(self) -> float:
        """Number that each sample adds to beta."""
        return (1 - self._first_beta) / self._anneal_step if self._anneal_step else 0.0

    def push(self, data: list[Any] | Any, cur_collector_envstep: int) -> None:
        """Store a dict, or each of a list: all or none. If there are too many, the oldest leave.

        Items that `check_list` refuses are left out. Each dict gets its `replay_unique_id`, its
        `replay_buffer_idx` and, if it has none, a `priority`, unless the config sets `deepcopy`. A
        push that a rate limit refuses is logged and discarded.

        Args:
            data: A dict, or a list of dicts. A dict without `priority` gets the largest that
                `update` has set (1.0 before). Its age follows from `collect_iter`, an integer or a
                list of integers.
            cur_collector_envstep: The collector's step; stored as the column `step`.

        Raises:
            ItemError: An item cannot be stored; the message names the place in it.
        """
        items = self._checked_items(data)
        if not items:
            return
        kept = items[-self._size :]
        name, new = self._instance_name, _new_items(kept)
        pushed = self._ring.push_items(
            new, len(items), cur_collector_envstep, name, track=self._tracks
        )
        if pushed.refused is not None:
            logger.warning("%s: %d items are refused: %s", name, len(items), pushed.refused)
            return
        if not self._deepcopy:
            for item, number, place in zip(kept, pushed.numbers, pushed.places, strict=True):
                item[UNIQUE_ID], item[INDEX] = generate_id(name, number), place
                if item.get(PRIORITY) is None:
                    item[PRIORITY] = pushed.default
        self._envstep = envstep_of(cur_collector_envstep)
        skipped = items[: len(items) - len(kept)]
        self._noted(pushed=len(items), removed=pushed.left.n + len(skipped))
        self._used([*pushed.left.items, *skipped])

    def _checked_items(self, data: Any) -> list[Any]:
        items = data if isinstance(data, list) else [data]
        kept = [item for item in items if all(check(item) for check in self.check_list)]
        if len(kept) < len(items) and not isinstance(data, list):
            logger.warning(
                "%s: an item is left out, since it fails check_list: %.200r",
                self._instance_name,
                data,
            )
        for i, item in enumerate(kept):
            if not isinstance(item, dict):
                raise ItemError(f"item {i} is a dict, got {item!r:.200}")
        return kept

    def sample(
        self, size: int, cur_learner_iter: int, sample_range: slice | None = None
    ) -> list[Any] | None:
        """Draw items by priority, one from each of `size` equal parts of all weights.

        Args:
            size: Number of items.
            cur_learner_iter: The learner's iteration, from which staleness is counted.
            sample_range: Range of items by age, 0 is the oldest: `slice(-10, None)` is the newest
                ten. Importance weights are still those of the whole buffer.

        Returns:
            A list of `size` dicts, each a copy, with `replay_unique_id`, `replay_buffer_idx` (place
            in the ring), `priority`, `use` (number of samples, with this one), `staleness` (-1
            without `collect_iter`) and `IS`, (least weight / its weight)^beta. None if fewer than
            size * `sample_min_limit_ratio` items are there, all are used up, or the rate limit
            refuses.

        Raises:
            ReplayError: The size is negative, or the range has no items.
        """
        size, iteration = checked_size(size), checked_iteration(cur_learner_iter)
        if size == 0:
            return []
        which = None if sample_range is None else checked_range(sample_range)
        sampled = self._ring.sample(self._wanted(size, iteration, which))
        self._used(sampled.left)
        if sampled.refused is not None:
            self._noted(removed=sampled.n_removed)
            if sampled.is_empty_range:
                raise ReplayError(f"sample_range={which}: {sampled.refused}")
            logger.info("%s: no sample: %s", self._instance_name, sampled.refused)
            return None
        self._noted(sampled=size, removed=sampled.n_removed)
        batch = self._batch(sampled, iteration)
        figures = self._figures.add(batch)
        if figures is not None:
            self._write({**figures, "beta": sampled.beta}, iteration)
        return batch

    def _wanted(self, size: int, iteration: int, which: slice | None) -> WantedItems:
        oldest = None
        if self._max_staleness is not None:
            oldest = math.floor(iteration - self._max_staleness) + 1
        with self._mutex:
            seed = int(self._rng.integers(2**62))
        return WantedItems(
            size=size,
            beta=self._first_beta,
            beta_step=self._beta_step,
            least_held=size * self._least_ratio,
            which=which,
            max_use=self._max_use,
            oldest_version=oldest,
            keeps_used=self._tracks,
            tracks=self._tracks,
            seed=seed,
        )

    @staticmethod
    def _batch(sampled: SampledItems, iteration: int) -> list[Any]:
        batch = []
        for item, id_, place, version, priority, weight, use in zip(
            sampled.items,
            sampled.ids,
            sampled.places,
            sampled.versions,
            sampled.priorities,
            sampled.weights,
            sampled.uses,
            strict=True,
        ):
            item[UNIQUE_ID], item[INDEX] = id_, place
            item[PRIORITY], item["use"], item["IS"] = priority, use, weight
            item["staleness"] = -1 if version is None else iteration - version
            batch.append(item)
        return batch

    def _write(self, figures: Mapping[str, Any], iteration: int) -> None:
        shown = ", ".join(f"{name} {value:g}" for name, value in figures.items())
        logger.info("%s at iteration %d: %s", self._instance_name, iteration, shown)
        if self._tb_logger is None or not is_first_rank():
            return
        for name, value in figures.items():
            for axis, x in (("iter", iteration), ("step", self._envstep)):
                if x != -1:
                    tag = f"{self._instance_name}_{axis}/{name}"
                    self._tb_logger.add_scalar(tag, value, x)

    def update(self, info: Any) -> None:
        """Set the priorities of items to p + 1e-5 each; new items get the largest p.

        Items that are not at their place any more are skipped. Without a key `priority`, nothing
        happens.

        Args:
            info: Lists `replay_unique_id`, `replay_buffer_idx` and `priority`, as in sampled items;
                the shortest decides. The last of equal items counts.

        Raises:
            MissingListError: It has `priority`, but not one of the others; a KeyError.
            TypeError: It is not a dict, or one of the values is not a list.
            PriorityError: A priority is negative or not a number; none is set.
        """
        priorities = new_priorities(info)
        if not priorities:
            return
        n_set = self._ring.update(priorities, self._max_use if self._tracks else None)
        if n_set < len(priorities):
            logger.debug("%s: %d items have left", self._instance_name, len(priorities) - n_set)

    def clear(self) -> None:
        """Remove all items, for every process that shares it; `push_count`, ids and `beta` stay."""
        left = self._ring.clear(track=self._tracks)
        self._noted(removed=left.n)
        self._used(left.items)

    def state_dict(self) -> dict[str, Any]:
        """Return all that it holds, as copies: `data`, the items in their places and None in the
        empty ones, `use_count`, `tail`, `head`, `max_priority`, `beta`, `anneal_step`,
        `next_unique_id`, `valid_count` and `push_count`.
        """
        held = self._ring.held()
        return to_state_dict(held, self._size, self._first_beta, self._anneal_step)

    def load_state_dict(self, _state_dict: Mapping[str, Any], deepcopy: bool = False) -> None:
        """Replace the contents of the shared buffer by the result of `state_dict`.

        From a larger buffer, the newest items are kept.

        Args:
            _state_dict: The state. If it has `data` alone, its items except None are pushed.
            deepcopy: No effect: the buffer always stores copies.

        Raises:
            ItemError: An item cannot be stored; the message names the place in it.
            ReplayError: The state has no `data`, or its parts do not fit together.
        """
        contents = from_state_dict(_state_dict, self._size)
        if contents is None:
            self.push([copy.copy(item) for item in _state_dict["data"] if item is not None], -1)
        else:
            self._hold(*contents)

    def _hold(self, held: HeldItems, anneal_step: int | None) -> None:
        new = _new_items(held.items)
        self._ring.hold(held._replace(items=new.items), new.versions)
        if anneal_step is not None:
            self._anneal_step = anneal_step

    def _to_file(self) -> tuple[Sequence[EncodedItem], dict[str, Any]]:
        held = self._ring.held(encoded=True)
        return held.items, file_head(held, self._size, self._first_beta, self._anneal_step)

    def _hold_file(self, items: Sequence[EncodedItem], head: Mapping[str, Any]) -> None:
        contents = from_file(items, head, self._size)
        if isinstance(contents, list):
            self.push(contents, -1)
        else:
            self._hold(*contents)


def _new_items(items: Sequence[Any]) -> NewItems:
    """Return items without the keys that a sample adds, and what these keys say.

    Raises:
        ItemError: A priority or a `collect_iter` cannot be; the message names the item.
    """
    priorities, versions, stripped = [], [], []
    for i, item in enumerate(items):
        priorities.append(initial_priority(item.get(PRIORITY), i))
        versions.append(model_version(item.get("collect_iter"), i))
        if not OWN_KEYS.isdisjoint(item):
            item = {key: value for key, value in item.items() if key not in OWN_KEYS}
        stripped.append(item)
    return NewItems(stripped, priorities, versions)
