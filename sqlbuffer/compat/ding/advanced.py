"""`AdvancedReplayBuffer`: draws by priority, limits of use and staleness, and what watches them."""

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from sqlbuffer.compat.ding.advanced_state import (
    HeldState,
    encoded_state,
    held_state,
    saved_state,
    shown_state,
)
from sqlbuffer.compat.ding.attributes import SampledDataAttrMonitor, TickTime
from sqlbuffer.compat.ding.base import register_buffer
from sqlbuffer.compat.ding.config import checked_count
from sqlbuffer.compat.ding.errors import (
    ItemError,
    MissingListError,
    PriorityError,
    ReplayConfigError,
    ReplayError,
)
from sqlbuffer.compat.ding.items import item_of, records_of
from sqlbuffer.compat.ding.naive import checked_range
from sqlbuffer.compat.ding.opening import opened_ring
from sqlbuffer.compat.ding.ring import RingBuffer, checked_size, items_of
from sqlbuffer.compat.ding.state import read, written
from sqlbuffer.compat.ding.throughput import is_first_rank, limit_of
from sqlbuffer.compat.ding.utils import generate_id
from sqlbuffer.encoding.priority_values import checked_priority
from sqlbuffer.encoding.records import Record
from sqlbuffer.errors import FieldError
from sqlbuffer.scalars import integer_of, real_of
from sqlbuffer.storage.buffers.catalog import Limits
from sqlbuffer.storage.buffers.open_buffer import OpenerOptions
from sqlbuffer.storage.extensions.prioritized_ring import (
    ID,
    VERSION,
    CreditLedger,
    NewPriority,
    PriorityRing,
    Sampled,
    WantedItems,
    number_of,
)

logger = logging.getLogger("sqlbuffer")

UNIQUE_ID, INDEX, PRIORITY = "replay_unique_id", "replay_buffer_idx", "priority"
# What a sampled item has beside its own keys.
OWN_KEYS = frozenset({UNIQUE_ID, INDEX, PRIORITY, "use", "staleness", "IS"})
_FIGURES = (
    ("use", "avg"), ("use", "max"), ("priority", "avg"), ("priority", "max"), ("priority", "min"),
    ("staleness", "avg"), ("staleness", "max"),
)  # fmt: skip


def is_dict(data: Any) -> bool:
    """Tell whether an item is a dict."""
    return isinstance(data, dict)


@register_buffer("advanced")
class AdvancedReplayBuffer(RingBuffer):
    """A ring of dicts that are drawn by priority, so often and so long as its limits let them.

    An item is drawn with probability p^alpha / sum, one from each of equal parts of the sum: it is
    repeated only where its weight is more than a part. It leaves when it was sampled `max_use`
    times, and before a sample when it is `max_staleness` iterations old.

    With a `url` everything is shared: items, priorities, uses, ids, `push_count`, `beta`, and the
    counts of the rate limit.

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

    _ring: PriorityRing

    def __init__(
        self,
        cfg: Any = None,
        tb_logger: Any = None,
        exp_name: str | None = "default_experiment",
        instance_name: str | None = "buffer",
    ) -> None:
        self.check_list: list[Callable[[Any], bool]] = [is_dict]
        super().__init__(cfg, tb_logger, exp_name, instance_name)
        self._n_samples, self._envstep = 0, -1

    def _check_config(self) -> None:
        super()._check_config()
        cfg = self._cfg
        self.alpha = _fraction(cfg.alpha, "alpha")
        self._first_beta = _fraction(cfg.beta, "beta")
        self._anneal_step = checked_count(cfg.anneal_step, "anneal_step", 0)
        self._deepcopy = bool(cfg.deepcopy)
        self._max_use = _limit(cfg.max_use, "max_use", above=0)
        self._max_staleness = _limit(cfg.max_staleness, "max_staleness")
        control = cfg.thruput_controller
        self._rate_limit = limit_of(control)
        ratio = real_of(control.sample_min_limit_ratio)
        if ratio is None or not 1 <= ratio < math.inf:
            raise ReplayConfigError(
                f"sample_min_limit_ratio is a number from 1 on, got "
                f"{control.sample_min_limit_ratio!r}"
            )
        self._least_ratio = ratio
        shown = cfg.monitor.sampled_data_attr
        if real_of(shown.average_range) is None or not shown.average_range > 0:
            raise ReplayConfigError(
                f"average_range is a number above 0, got {shown.average_range!r}"
            )
        self._ticks = TickTime()
        self._monitor = SampledDataAttrMonitor(self._ticks, shown.average_range)
        self._print_freq = checked_count(shown.print_freq, "print_freq")

    def _opened(self, url: str, name: str) -> PriorityRing:
        limits, options = Limits(priorities=True), OpenerOptions(alpha=self.alpha)
        store = opened_ring(url, name, "advanced", self._size, limits, options).store
        if store.info.alpha != self.alpha:
            raise ReplayConfigError(
                f"buffer {name!r} at {store.shown_url} was made with alpha={store.info.alpha:g}, "
                f"not {self.alpha:g}; give that one, or another name: {{'name': ...}}"
            )
        return PriorityRing(store, "advanced", self._size, self._rate_limit)

    def _periodic_seconds(self) -> Any:
        return self._cfg.monitor.periodic_thruput.seconds

    @property
    def beta(self) -> float:
        """The exponent of the next batch's importance weights; set it to change it for every
        process of the buffer.
        """
        kept = CreditLedger.of(self._ring.counts()).beta
        return self._first_beta if kept is None else kept

    @beta.setter
    def beta(self, beta: float) -> None:
        self._ring.set_beta(_fraction(beta, "beta"))

    @property
    def _beta_step(self) -> float:
        """What a sample adds to beta."""
        return (1 - self._first_beta) / self._anneal_step if self._anneal_step else 0.0

    def push(self, data: list[Any] | Any, cur_collector_envstep: int) -> None:
        """Put in a dict, or each of a list: all or none. The oldest leave where there are too many.

        What `check_list` refuses is left out. Each dict is given its `replay_unique_id`,
        `replay_buffer_idx` and, where it has none, `priority`, unless the config says `deepcopy`.
        Under a rate limit a push may be refused, which is logged: its items are thrown away.

        Args:
            data: A dict, or a list of them. Its `priority` is the largest that was set by `update`
                (1.0 before) where it has none; `collect_iter`, an integer or a list of them, tells
                how old it is.
            cur_collector_envstep: The collector's step; kept as the column `step`.

        Raises:
            ItemError: An item cannot be stored; names the place in it.
        """
        items = self._checked_items(data)
        if not items:
            return
        kept = items[-self._size :]
        records = self._records(kept, cur_collector_envstep)
        self._check_sizes(records)
        name, ring = self._instance_name, self._ring
        pushed = ring.push_items(records, len(items), name, track=self._tracks)
        if pushed.refused is not None:
            logger.warning("%s: %d items are refused: %s", name, len(items), pushed.refused)
            return
        if not self._deepcopy:
            for item, number, place in zip(kept, pushed.numbers, pushed.places, strict=True):
                item[UNIQUE_ID], item[INDEX] = generate_id(name, number), place
                if item.get(PRIORITY) is None:
                    item[PRIORITY] = pushed.default
        self._envstep = _step_of(cur_collector_envstep)
        skipped = items[: len(items) - len(kept)]
        self._noted(pushed=len(items), removed=pushed.left.n + len(skipped))
        self._used([*map(item_of, pushed.left.rows), *skipped])

    def _checked_items(self, data: Any) -> list[Any]:
        items = data if isinstance(data, list) else [data]
        found = [item for item in items if all(check(item) for check in self.check_list)]
        if len(found) < len(items) and not isinstance(data, list):
            logger.warning(
                "%s: an item is left out, since it fails check_list: %.200r",
                self._instance_name,
                data,
            )
        for i, item in enumerate(found):
            if not isinstance(item, dict):
                raise ItemError(f"item {i} is a dict, got {item!r:.200}")
        return found

    def _records(self, items: Sequence[Any], envstep: Any) -> list[Record]:
        stripped = [
            item
            if OWN_KEYS.isdisjoint(item)
            else {key: value for key, value in item.items() if key not in OWN_KEYS}
            for item in items
        ]
        found = records_of(stripped, self._source, envstep)
        for i, item in enumerate(items):
            priority, version = item.get(PRIORITY), item.get("collect_iter")
            # A plain integer is the row's version already.
            if priority is not None or (version is not None and type(version) is not int):
                found[i] = found[i]._replace(
                    initial_priority=_priority(priority, i), model_version=_version(version, i)
                )
        return found

    def sample(
        self, size: int, cur_learner_iter: int, sample_range: slice | None = None
    ) -> list[Any] | None:
        """Draw items by priority, one from each of `size` equal parts of all weights.

        Args:
            size: How many.
            cur_learner_iter: The learner's iteration, which staleness goes by.
            sample_range: Which items by age, 0 being the oldest: `slice(-10, None)` are the newest
                ten. Importance weights stay those of the whole buffer.

        Returns:
            A list of `size` dicts, each a copy, with `replay_unique_id`, `replay_buffer_idx` (its
            place in the ring), `priority`, `use` (how often it was sampled, itself included),
            `staleness` (-1 without `collect_iter`) and `IS`, (least weight / its weight)^beta; or
            None where there are fewer than size * `sample_min_limit_ratio` items, the rate limit
            refuses it, or all are used up.

        Raises:
            ReplayError: A negative size, or a range without items.
        """
        size, iteration = checked_size(size), _iteration(cur_learner_iter)
        if size == 0:
            return []
        which = None if sample_range is None else checked_range(sample_range)
        found = self._ring.sample(self._wanted(size, iteration, which))
        self._used(items_of(found.left))
        if found.refused is not None:
            self._noted(removed=found.n_removed)
            if found.is_empty_range:
                raise ReplayError(f"sample_range={which}: {found.refused}")
            logger.info("%s: no sample: %s", self._instance_name, found.refused)
            return None
        self._noted(sampled=size, removed=found.n_removed)
        batch = self._batch(found, iteration)
        self._watch(batch, iteration, found.beta)
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

    def _batch(self, found: Sampled, iteration: int) -> list[Any]:
        batch = []
        for row, priority, weight, use in zip(
            found.rows, found.priorities, found.weights, found.uses, strict=True
        ):
            item, version = item_of(row), row[VERSION]
            item[UNIQUE_ID] = row[ID]
            item[INDEX] = self._ring.place_of(number_of(row[ID]), found.counts)
            item[PRIORITY], item["use"], item["IS"] = priority, use, weight
            item["staleness"] = -1 if version is None else iteration - version
            batch.append(item)
        return batch

    def _watch(self, batch: Sequence[Any], iteration: int, beta: float | None) -> None:
        """Take note of a batch, and write the figures of the last ones now and then."""
        uses, priorities, stale = (
            [item[key] for item in batch] for key in ("use", PRIORITY, "staleness")
        )
        with self._mutex:
            monitor, n = self._monitor, len(batch)
            monitor.use_max, monitor.use_avg = max(uses), sum(uses) / n
            monitor.priority_max, monitor.priority_min = max(priorities), min(priorities)
            monitor.priority_avg = sum(priorities) / n
            monitor.staleness_max, monitor.staleness_avg = max(stale), sum(stale) / n
            self._ticks.step()
            is_due = self._n_samples % self._print_freq == 0
            self._n_samples += 1
            figures = {f"{what}_{how}": getattr(monitor, how)[what]() for what, how in _FIGURES}
        if is_due:
            self._write({**figures, "beta": beta}, iteration)

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
        """Set the priorities of items, to p + 1e-5 each; the largest p is what new items have.

        Items that are no longer where they were are skipped. Without a key `priority` nothing is
        done.

        Args:
            info: Lists `replay_unique_id`, `replay_buffer_idx` and `priority`, as sampled items
                have them; the shortest decides. Of equal items the last counts.

        Raises:
            MissingListError: It has `priority`, and lacks one of the others; a KeyError.
            TypeError: It is no dict, or one of them no list.
            PriorityError: A priority that is negative or no number; none is set.
        """
        given = _new_priorities(info)
        if not given:
            return
        n_set = self._ring.update(given, self._max_use if self._tracks else None)
        if n_set < len(given):
            logger.debug("%s: %d items have left", self._instance_name, len(given) - n_set)

    def clear(self) -> None:
        """Remove all items, for every process that shares it; `push_count`, ids and `beta` stay."""
        left = self._ring.clear_items(track=self._tracks)
        self._noted(removed=left.n)
        self._used(items_of(left.rows))

    def state_dict(self) -> dict[str, Any]:
        """Return all that it holds, as copies: `data`, the items in their places and None in the
        empty ones, `use_count`, `tail`, `head`, `max_priority`, `beta`, `anneal_step`,
        `next_unique_id`, `valid_count` and `push_count`.
        """
        held = self._ring.held()
        return shown_state(held, self._size, self._first_beta, self._anneal_step)

    def load_state_dict(self, _state_dict: Mapping[str, Any], deepcopy: bool = False) -> None:
        """Hold what `state_dict` returned, instead of what there is; for every process that shares
        it. Of a larger buffer the newest items are kept.

        Args:
            _state_dict: The state; with `data` alone its items are pushed, but for None.
            deepcopy: Without effect: what it holds is a copy always.

        Raises:
            MissingDataError: It lacks `data`.
            ReplayError: What it says does not fit together.
        """
        found = held_state(_state_dict, self._size)
        if found is None:
            self.push([copy.copy(item) for item in _state_dict["data"] if item is not None], -1)
        else:
            self._hold(found)

    def _hold(self, state: HeldState) -> None:
        records = [
            record._replace(id=id_, initial_priority=priority)
            for record, id_, priority in zip(
                self._records(state.items, 0), state.ids, state.priorities, strict=True
            )
        ]
        self._check_sizes(records)
        self._ring.hold(records, state.uses, state.counts, state.ledger)
        if state.anneal_step is not None:
            self._anneal_step = state.anneal_step

    def save_data(self, file_name: Any) -> None:
        """Write all that `state_dict` has to a file, in place of what there is.

        Args:
            file_name: Any name; folders are made. The file is an archive of numpy arrays, without
                pickle.
        """
        held = self._ring.held()
        items, head = encoded_state(held, self._size, self._first_beta, self._anneal_step)
        written(file_name, items, head)

    def load_data(self, file_name: Any) -> None:
        """Hold what `save_data` wrote, instead of what there is; for every process that shares it.
        Of a larger buffer the newest items are kept; the items of another kind's file are pushed.

        Raises:
            FileNotFoundError: No such file.
            ReplayError: Another kind of file, or a damaged one.
        """
        items, head = read(file_name)
        found = saved_state(items, head, self._size)
        if isinstance(found, list):
            self.push(found, -1)
        else:
            self._hold(found)


def _fraction(value: Any, name: str) -> float:
    real = real_of(value)
    if real is None or not 0 <= real <= 1:
        raise ReplayConfigError(f"{name} is a number from 0 to 1, got {value!r}")
    return real


def _limit(value: Any, name: str, above: float | None = None) -> float | None:
    """Return a limit; None: there is none."""
    real = real_of(value)
    if real is None or math.isnan(real) or real < 0 or (above is not None and real <= above):
        least = "from 0 on" if above is None else f"above {above:g}"
        raise ReplayConfigError(f"{name} is a number {least}, float('inf') for none, got {value!r}")
    return None if real == math.inf else real


def _priority(value: Any, i: int) -> float | None:
    if value is None:
        return None
    try:
        return checked_priority(value)
    except FieldError as error:
        raise ItemError(f"item {i}: {error}") from None


def _new_priorities(info: Any) -> dict[str, NewPriority]:
    """Return what the lists of an update say, by id."""
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
    given: dict[str, NewPriority] = {}
    for i, (one, place, value) in enumerate(zip(*lists, strict=False)):
        priority, id_ = _new_priority(value, i), str(one)
        before = given.get(id_)
        largest = priority if before is None else max(priority, before.largest)
        given[id_] = NewPriority(integer_of(_listed(place)), priority, largest)
    return given


def _new_priority(value: Any, i: int) -> float:
    try:
        return checked_priority(value)
    except FieldError as error:
        raise PriorityError(f"priority of entry {i}: {error}") from None


def _listed(values: Any) -> Any:
    """Return the elements of a list, an array or a tensor."""
    return values.tolist() if hasattr(values, "tolist") else values


def _version(value: Any, i: int) -> int | None:
    """Return the iteration that an item was collected at: the least one of several."""
    if value is None:
        return None
    given = _listed(value)
    several = given if isinstance(given, (list, tuple)) else [given]
    found = [integer_of(_listed(each)) for each in several]
    whole = [each for each in found if each is not None and abs(each) < 2**62]
    if not found or len(whole) < len(found):
        raise ItemError(f"item {i}: collect_iter is an integer or a list of them, got {value!r}")
    return min(whole)


def _iteration(value: Any) -> int:
    found = integer_of(_listed(value))
    if found is None:
        raise TypeError(f"cur_learner_iter is an integer, got {value!r}")
    return found


def _step_of(value: Any) -> int:
    found = integer_of(_listed(value)) if value is not None else None
    return -1 if found is None else found
