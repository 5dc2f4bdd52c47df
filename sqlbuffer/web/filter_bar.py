"""The filter of the list of episodes, in one line: words, comparisons and conditions on steps."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlbuffer.codec.plain_values import INT64_MAX, INT64_MIN, is_storable_text
from sqlbuffer.display import shown
from sqlbuffer.errors import ConditionError
from sqlbuffer.fields import FieldSpec
from sqlbuffer.query.builder import Tree
from sqlbuffer.query.tree import check, condition_of, known_fields, nearest, typed_leaf
from sqlbuffer.storage.browsing.rollouts import RolloutFilter

STATUSES = ("open", "complete", "aborted", "abandoned")
MOST_CHARACTERS = 20_000
MOST_PARTS = 50
# Other names of values of an episode: those of its steps and of the views.
_SAME = {
    "task_id": "task",
    "episode_id": "episode",
    "agent_id": "agent",
    "group_id": "group",
    "version": "model",
    "return": "reward",
    "episode_reward": "reward",
    "episode_length": "length",
}
_TEXTS = ("episode", "task", "group", "agent", "status")
_NUMBERS = ("reward", "length", "spread", "model")
EPISODE_NAMES = (*_TEXTS, *_NUMBERS)
# The facts of an episode that a condition on steps may name.
_FACTS = {
    "episode": "episode_id",
    "task": "task_id",
    "group": "group_id",
    "agent": "agent_id",
    "status": "status",
    "model": "model_version",
    "reward": "episode_reward",
    "length": "episode_length",
}
_OPERATORS = {"=": "eq", "!=": "ne", "<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PART = re.compile(
    rf"""(?P<name>[^\W\d][\w-]*(?:\.(?:{_QUOTED}|[\w-]+)|\[-?\d+\])*)
    \s*(?P<comparison>!=|<=|>=|=|<|>)\s*(?P<value>{_QUOTED}|[^\s"]\S*)?
    |(?P<word>{_QUOTED}|\S+)""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class EpisodeFilter:
    """What a filter asks for.

    Attributes:
        words: Texts that ids must contain.
        filters: Comparisons with values of an episode.
        tree: Condition on a step.
    """

    words: tuple[str, ...] = ()
    filters: tuple[RolloutFilter, ...] = ()
    tree: Tree | None = None

    def as_tree(self) -> Tree:
        """Return all of it as a condition on steps.

        A condition distinguishes cases: words are looked for as they are, in lower and upper case.
        In a condition, an open episode has no reward and no length yet.

        Raises:
            ConditionError: It compares the spread, which is not a fact of a step.
        """
        leaves: list[Tree] = [{"or_": [*_contained(word)]} for word in self.words]
        for each in self.filters:
            if each.name not in _FACTS:
                raise ConditionError("steps have no spread")
            leaves.append(_leaf(_FACTS[each.name], _OPERATORS[each.comparison], each.value))
        if self.tree is not None:
            leaves.append(self.tree)
        return leaves[0] if len(leaves) == 1 else {"and_": leaves}


def parse_filter(text: str, specs: Mapping[str, FieldSpec]) -> EpisodeFilter:
    """Return what a text asks for.

    `ant status=open reward>=0.5 state.level=3` are the open episodes with a reward of 0.5 or more,
    of which an id contains `ant` and a step has this state. Words and values with spaces are in
    double quotes. A text that begins with `{` is a condition as JSON.

    Args:
        text: The text.
        specs: The typed fields of the buffer.

    Raises:
        ConditionError: A part of it is wrong.

    Example:
        >>> parse_filter('ant "to do" reward>0', {}).words
        ('ant', 'to do')
    """
    if len(text) > MOST_CHARACTERS:
        raise ConditionError(f"the filter has more than {MOST_CHARACTERS:,} characters")
    if not is_storable_text(text):
        raise ConditionError("no text in the database has the character U+0000, or half of a pair")
    if text.startswith(("{", "[")):
        return _checked(EpisodeFilter(tree=condition_of(specs, text, None)), specs)
    if re.sub(r"\\.", "", text, flags=re.DOTALL).count('"') % 2:
        raise ConditionError('a quote is not closed; write words with spaces as "to do"')
    words: list[str] = []
    filters: list[RolloutFilter] = []
    leaves: list[Tree] = []
    for name, comparison, value, is_quoted in _parts(text):
        known = _SAME.get(name, name)
        if not comparison:
            words.append(value)
        elif name not in specs and known in (*_TEXTS, *_NUMBERS):
            filters.append(RolloutFilter(known, comparison, _value(known, value)))
        else:
            leaves.append(_on_steps(name, comparison, value, specs, is_quoted))
    if len(words) + len(filters) + len(leaves) > MOST_PARTS:
        raise ConditionError(f"the filter has more than {MOST_PARTS} parts")
    tree: Tree | None = {"and_": leaves} if len(leaves) > 1 else leaves[0] if leaves else None
    return _checked(EpisodeFilter(tuple(words), tuple(filters), tree), specs)


def _checked(wanted: EpisodeFilter, specs: Mapping[str, FieldSpec]) -> EpisodeFilter:
    check(wanted.tree, {name: spec.column for name, spec in specs.items()})
    return wanted


def _parts(text: str) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the name, comparison and value of each part; a word has a value alone."""
    for part in _PART.finditer(text):
        name, comparison, value, word = (
            part["name"],
            part["comparison"],
            part["value"],
            part["word"],
        )
        if word is not None:
            plain, _ = _unquoted(word)
            if plain:
                yield "", "", plain, False
            continue
        if value is None:
            raise ConditionError(
                f"{name}{comparison} has no value; write {name}{comparison}3 or "
                f'{name}{comparison}"a text"'
            )
        yield name, comparison, *_unquoted(value)


def quoted_value(text: str) -> str:
    """Return a text as a value of a filter.

    Example:
        >>> print(quoted_value('say "hi"'))
        "say \\"hi\\""
    """
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _unquoted(text: str) -> tuple[str, bool]:
    if len(text) > 1 and text.startswith('"') and text.endswith('"'):
        return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL), True
    return text, False


def _on_steps(
    name: str, comparison: str, value: str, specs: Mapping[str, FieldSpec], is_quoted: bool
) -> Tree:
    try:
        return typed_leaf(name, _OPERATORS[comparison], value, specs, is_text=is_quoted)
    except ConditionError as error:
        what = str(error)
        if what.startswith("unknown field"):
            # The names of steps are many; the page lists them apart.
            of_steps = known_fields({name: spec.column for name, spec in specs.items()})
            hint = nearest(name, list(dict.fromkeys([*EPISODE_NAMES, *of_steps])))
            what = f"unknown field {shown(name)}{hint}"
        what = what if what.endswith(("?", ".")) else f"{what}."
        raise ConditionError(
            f"{what} Facts of an episode: {', '.join(EPISODE_NAMES)}. "
            f'To look for the text itself, put it in quotes: "{name}{comparison}{value}"'
        ) from None


def _value(name: str, text: str) -> Any:
    """Return the value that a text compares with; raise ConditionError if it is not one."""
    if name == "status" and text not in STATUSES:
        raise ConditionError(f"the status is one of {', '.join(STATUSES)}; got {shown(text)}")
    if name in _TEXTS:
        return text
    if name in ("model", "length"):
        return _whole(text, name)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ConditionError(f"the {name} is a number, such as 0.5; got {shown(text)}")
    return number


def _whole(text: str, name: str) -> int:
    try:
        number = int(text[:40])
    except ValueError:
        raise ConditionError(
            f"the {name} is a whole number, such as 3; got {shown(text)}"
        ) from None
    if not INT64_MIN <= number <= INT64_MAX:
        raise ConditionError(f"the {name} has at most 64 bits; got {shown(text)}")
    return number


def _contained(word: str) -> Iterator[Tree]:
    for text in dict.fromkeys((word, word.lower(), word.upper())):
        for name in ("episode", "task", "group", "agent"):
            yield _leaf(_FACTS[name], "like", text)


def _leaf(field: str, op: str, value: Any) -> Tree:
    return {"field": field, "op": op, "value": value}
