"""Rollouts of language models as sequences of tokens."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sqlbuffer.checks import checked_dict, checked_iterable, refused
from sqlbuffer.errors import FieldError
from sqlbuffer.llm.conversations import Answer, Message, answers_of, messages_of
from sqlbuffer.steps import DataRow
from sqlbuffer.storage.episodes import EpisodeFacts, EpisodeKey

# The tokens of a turn. `logprobs` and `loss_mask` have one value for each completion token.
LLM_FIELDS: Mapping[str, tuple[str, tuple[int, ...], list[Any]]] = {
    "prompt_ids": ("int32", (-1,), []),
    "completion_ids": ("int32", (-1,), []),
    "logprobs": ("float32", (-1,), []),
    "loss_mask": ("bool", (-1,), []),
}
# Version of a token that nobody sampled, or whose turn has none.
NO_VERSION = -1
# A chat template marks what the assistant says between such a block and its end.
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """Tokens of one or more turns of a rollout, as the model saw them.

    Attributes:
        ids: Token ids, int64 of shape (n,).
        loss_mask: True for sampled tokens that a loss may count, bool of shape (n,).
        logprobs: Log-probability of each token when it was sampled, float32 of shape (n,): 0 where
            `loss_mask` is False, NaN where none was stored.
        versions: Version of the model that sampled each token, int64 of shape (n,); -1 where
            `loss_mask` is False or the turn has no version.
        turns: Places of its turns in `Rollout.turns`.
        is_made: True if a tokenizer made ids of it from messages.

    Example:
        >>> one, some = np.ones(2, np.int64), np.array([False, True])
        >>> TokenSequence(one, some, np.zeros(2, np.float32), one, [0], False).n_sampled
        1
    """

    ids: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int64]
    turns: list[int]
    is_made: bool

    @property
    def n_sampled(self) -> int:
        """Number of tokens that a loss may count."""
        return int(self.loss_mask.sum())

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Rollout:
    """One rollout of a batch of groups.

    Attributes:
        task_id: Its task.
        group_id: Its group: `group_id` of the episode, or else the task.
        group: Number of its group in the batch, from 0 on.
        episode_id: Id of the episode; None for a step without one, which is a rollout of its own.
        status: `complete`, `aborted`, `abandoned` or `open`; None if it is not known, or if the
            episode has left the buffer since it was drawn.
        reward: Reward of the episode, or else the sum of its steps' rewards, also of those that
            have left; None without both, or if the episode has left.
        meta: Meta of the episode; None without any.
        turns: Its steps, in their order.
        n_missing: Steps of the ended episode that are not among them: deleted, evicted or in
            quarantine.
        tokenizer: Makes token ids that are missing; None: none are made.

    Example:
        >>> from sqlbuffer import DataRow, Experience, ExpMeta
        >>> tokens = {"prompt_ids": [1, 2], "completion_ids": [3], "logprobs": [-0.5]}
        >>> row = DataRow(ExpMeta("sums"), Experience(messages=["1 + 1?"]), fields=tokens)
        >>> (rollout,) = rollouts([[row]])
        >>> rollout.messages, rollout.sequences[0].ids.tolist()
        ([{'role': 'user', 'content': '1 + 1?'}], [1, 2, 3])
    """

    task_id: str
    group_id: str
    group: int
    episode_id: str | None
    status: str | None
    reward: float | None
    meta: dict[str, Any] | None
    turns: list[DataRow]
    n_missing: int = 0
    tokenizer: Any = None

    @cached_property
    def messages(self) -> list[Message]:
        """The conversation; see `joined_messages`.

        Raises:
            FieldError: A step holds something that is not a message.
        """
        return messages_of(self.turns)

    @cached_property
    def sequences(self) -> list[TokenSequence]:
        """The tokens of its turns.

        A turn goes on with a sequence of the same agent if its prompt begins with exactly that
        sequence, prompt and completion. Else, as after compaction, another sequence begins. Ids
        that were stored are never made again. The tokenizer of `rollouts` makes those of turns that
        have none; without a tokenizer such turns are left out if others have ids.

        Raises:
            FieldError: Token ids are missing and there is no tokenizer, or `logprobs` or
                `loss_mask` has another length than `completion_ids`.
        """
        return _sequences(self)

    @cached_property
    def answers(self) -> dict[int, list[Answer]]:
        """What the agents said, by the place of the turn.

        :meta private:
        """
        answers: dict[int, list[Answer]] = {place: [] for place in range(len(self.turns))}
        for answer in answers_of(self.turns):
            answers[answer.place].append(answer)
        return answers

    def __repr__(self) -> str:
        return (
            f"Rollout({self.task_id!r}, {self.episode_id!r}, status={self.status!r}, "
            f"reward={self.reward}, {len(self.turns)} turns)"
        )


Facts = Mapping[EpisodeKey, EpisodeFacts]


def rollouts(
    groups: Sequence[Sequence[DataRow]],
    facts: Facts | None = None,
    tokenizer: Any = None,
) -> list[Rollout]:
    """Return the rollouts of groups of steps, group by group.

    Batches call this for you: `LeasedBatch.rollouts` and that of `sample_tasks`, which know how
    each episode has ended.

    Args:
        groups: The steps of each group, those of an episode in its order, as `LeasedBatch.groups`
            has them. Without groups of a lease, steps of one task.
        facts: What a batch knows of the episodes; None: nothing, so rewards are sums of steps, and
            the status is None.
        tokenizer: Makes missing token ids by `apply_chat_template`, as those of Hugging Face do.

    Raises:
        ArgumentError: The groups are not lists of rows, or the tokenizer has no such method.

    Example:
        >>> from sqlbuffer import DataRow, Experience, ExpMeta
        >>> rows = [DataRow(ExpMeta("t"), Experience(reward_t=reward)) for reward in (0.0, 1.0)]
        >>> [rollout.reward for rollout in rollouts([rows])]
        [0.0, 1.0]
    """
    if tokenizer is not None and not hasattr(tokenizer, "apply_chat_template"):
        what = "an object with apply_chat_template, as the tokenizers of transformers are"
        raise refused(tokenizer, "tokenizer", what)
    if facts is not None:
        checked_dict(facts, "facts", "that of a batch")
    made: list[Rollout] = []
    what = "a list of lists of rows, one for each group"
    for number, group in enumerate(checked_iterable(groups, "groups", what)):
        rows = list(checked_iterable(group, "groups", what))
        if not all(isinstance(row, DataRow) for row in rows):
            raise refused(groups, "groups", what)
        turns_by_key: dict[Any, list[DataRow]] = {}
        for row in rows:
            meta = row.exp_meta
            single = None if meta.episode_id is not None else len(turns_by_key)
            turns_by_key.setdefault((meta.episode_id, meta.task_id, single), []).append(row)
        for turns in turns_by_key.values():
            made.append(_rollout(number, turns, _known(turns[0], facts), tokenizer))
    return made


def _known(row: DataRow, facts: Facts | None) -> EpisodeFacts | None:
    """Return what is known of the episode of a step; None if it has left the buffer."""
    meta = row.exp_meta
    if meta.episode_id is None:
        return EpisodeFacts("complete")
    if facts is None:
        return EpisodeFacts(None)
    return facts.get((meta.episode_id, meta.task_id))


def _rollout(
    number: int, turns: list[DataRow], known: EpisodeFacts | None, tokenizer: Any
) -> Rollout:
    meta = turns[0].exp_meta
    status, reward, of_episode, n_missing = None, None, None, 0
    if known is not None:
        status, reward = known.status, known.reward
        of_episode = None if known.meta is None else orjson.loads(known.meta)
        rewards = [turn.exp_data.reward_t for turn in turns if turn.exp_data.reward_t is not None]
        if reward is None:
            reward = float(sum(rewards)) if rewards and known.total is None else known.total
        n_missing = max(0, (known.length or 0) - len(turns))
    return Rollout(
        meta.task_id, meta.group_id or meta.task_id, number, meta.episode_id, status, reward,
        of_episode, turns, n_missing, tokenizer,
    )  # fmt: skip


def grouped(rows: Sequence[DataRow]) -> list[list[DataRow]]:
    """Return rows by their group: `group_id` of the episode, or else the task."""
    groups: dict[str, list[DataRow]] = {}
    for row in rows:
        groups.setdefault(row.exp_meta.group_id or row.exp_meta.task_id, []).append(row)
    return list(groups.values())


@dataclass(frozen=True)
class _Turn:
    """The tokens of a turn."""

    place: int
    row: DataRow
    prompt: NDArray[np.int64]
    completion: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    is_made: bool

    @property
    def versions(self) -> NDArray[np.int64]:
        version = self.row.exp_meta.model_version
        return np.where(self.loss_mask, NO_VERSION if version is None else version, NO_VERSION)


def _sequences(rollout: Rollout) -> list[TokenSequence]:
    sequences: list[TokenSequence] = []
    agents: list[str] = []  # of the sequences
    for turn in _turns(rollout):
        agent_id = turn.row.exp_meta.agent_id
        for place in reversed(range(len(sequences))):
            if agents[place] == agent_id and _begins_with(turn.prompt, sequences[place].ids):
                sequences[place] = _joined(sequences[place], turn)
                break
        else:
            agents.append(agent_id)
            sequences.append(_joined(_EMPTY, turn))
    return sequences


def _turns(rollout: Rollout) -> Iterator[_Turn]:
    """Yield the turns in which something was sampled."""
    stored = [(_ids(row, "prompt_ids"), _ids(row, "completion_ids")) for row in rollout.turns]
    has_ids = [prompt is not None or said is not None for prompt, said in stored]
    if not all(has_ids) and rollout.tokenizer is None and not any(has_ids):
        raise FieldError(
            f"task {rollout.task_id!r}, episode {rollout.episode_id!r}: no turn has token ids; "
            f"store them in fields=sqlbuffer.llm.LLM_FIELDS, or give tokenizer=... to make them "
            f"from the messages"
        )
    for place, (prompt, completion) in enumerate(stored):
        if completion is not None:
            yield _stored_turn(rollout, place, prompt, completion)
        elif not has_ids[place] and rollout.tokenizer is not None:
            yield from (_made_turn(rollout, each) for each in rollout.answers[place])


_EMPTY = TokenSequence(
    np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.float32), np.empty(0, np.int64),
    [], False,
)  # fmt: skip


def _begins_with(prompt: NDArray[np.int64], ids: NDArray[np.int64]) -> bool:
    return len(prompt) >= len(ids) and bool(np.array_equal(prompt[: len(ids)], ids))


def _joined(before: TokenSequence, turn: _Turn) -> TokenSequence:
    asked = turn.prompt[len(before) :]
    n = len(asked)
    return TokenSequence(
        np.concatenate([before.ids, asked, turn.completion]),
        np.concatenate([before.loss_mask, np.zeros(n, np.bool_), turn.loss_mask]),
        np.concatenate([before.logprobs, np.zeros(n, np.float32), turn.logprobs]),
        np.concatenate([before.versions, np.full(n, NO_VERSION), turn.versions]),
        sorted({*before.turns, turn.place}),
        before.is_made or turn.is_made,
    )


def _ids(row: DataRow, name: str) -> NDArray[np.int64] | None:
    """Return token ids of a step; None if it has none."""
    ids = row.fields.get(name)
    if ids is None or len(ids) == 0:
        return None
    array = np.asarray(ids)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise FieldError(
            f"field {name!r}: token ids are integers in one dimension, got {array.dtype} of shape "
            f"{array.shape}; declare the fields with sqlbuffer.llm.LLM_FIELDS"
        )
    return array.astype(np.int64)


def _aligned(rollout: Rollout, place: int, name: str, n: int) -> NDArray[Any] | None:
    """Return values of the completion tokens of a turn; None where they were left out."""
    values = rollout.turns[place].fields.get(name)
    if values is None or len(values) == 0:
        return None
    if len(values) != n:
        raise FieldError(
            f"{_name(rollout, place)}: {name} has {len(values)} values for {n} completion tokens; "
            f"give one for each, or leave it out"
        )
    return np.asarray(values)


def _name(rollout: Rollout, place: int) -> str:
    return (
        f"task {rollout.task_id!r}, episode {rollout.episode_id!r}, turn {place} "
        f"(seq {rollout.turns[place].seq})"
    )


def _stored_turn(
    rollout: Rollout,
    place: int,
    prompt: NDArray[np.int64] | None,
    completion: NDArray[np.int64],
) -> _Turn:
    """Return a turn whose completion is stored."""
    is_made = prompt is None
    if prompt is None:
        prompt = _made_prompt(rollout, place)
    n = len(completion)
    mask, logprobs = (_aligned(rollout, place, name, n) for name in ("loss_mask", "logprobs"))
    mask = np.ones(n, np.bool_) if mask is None else mask.astype(np.bool_)
    logprobs = np.full(n, np.nan) if logprobs is None else logprobs
    logprobs = np.where(mask, logprobs, 0).astype(np.float32)
    return _Turn(place, rollout.turns[place], prompt, completion, mask, logprobs, is_made)


def _made_prompt(rollout: Rollout, place: int) -> NDArray[np.int64]:
    """Return the ids of what an agent was asked in a turn whose completion is stored."""
    answers = rollout.answers[place]
    if rollout.tokenizer is None or not answers:
        raise FieldError(
            f"{_name(rollout, place)}: it has completion_ids and no prompt_ids; store both, or "
            f"give tokenizer=... to make the prompt from its messages"
        )
    return _by_template(rollout, answers[0].asked, add_generation_prompt=True)[0]


def _made_turn(rollout: Rollout, answer: Answer) -> _Turn:
    """Return a turn without token ids, as the tokenizer makes it.

    The completion is what comes after the prompt. In it the template's own mask counts, if it has
    one.
    """
    row = rollout.turns[answer.place]
    prompt, _ = _by_template(rollout, answer.asked, add_generation_prompt=True)
    whole, mask = _by_template(rollout, [*answer.asked, *answer.said], with_mask=True)
    n = len(prompt)
    if not _begins_with(whole, prompt):
        if mask is None:
            raise FieldError(
                f"{_name(rollout, answer.place)}: the chat template writes an answer differently "
                f"after its prompt, so no mask can be made; mark answers with a generation block "
                f"in the template, or store token ids (sqlbuffer.llm.LLM_FIELDS)"
            )
        begins = np.flatnonzero(mask & ~np.concatenate([[False], mask[:-1]]))
        n = int(begins[-min(len(answer.said), len(begins))])
    mask = np.ones(len(whole) - n, np.bool_) if mask is None else mask[n:]
    logprobs = np.where(mask, np.nan, 0).astype(np.float32)
    return _Turn(answer.place, row, whole[:n], whole[n:], mask, logprobs, True)


def _by_template(
    rollout: Rollout,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = False,
    with_mask: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Return the ids that the chat template makes, and its mask of what the assistant says.

    Tool calls have their arguments as dicts, as templates expect them.
    """
    tokenizer = rollout.tokenizer
    options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt}
    if tools := (rollout.meta or {}).get("tools"):
        options["tools"] = tools
    if with_mask := with_mask and _marks_answers(tokenizer):
        options["return_assistant_tokens_mask"] = True
    made = tokenizer.apply_chat_template(
        [_with_parsed_arguments(message) for message in messages],
        tokenize=True, return_dict=True, **options,
    )  # fmt: skip
    ids = _flat(made["input_ids"] if isinstance(made, Mapping) else made, tokenizer)
    mask = _flat(made["assistant_masks"], tokenizer).astype(np.bool_) if with_mask else None
    return ids, mask if mask is not None and mask.any() else None


def _marks_answers(tokenizer: Any) -> bool:
    template = getattr(tokenizer, "chat_template", None)
    templates = template.values() if isinstance(template, Mapping) else [template]
    return any(isinstance(each, str) and _GENERATION.search(each) for each in templates)


def _flat(values: Any, tokenizer: Any) -> NDArray[np.int64]:
    """Return what a tokenizer made of one conversation, as an array of one dimension."""
    array = np.asarray(values.tolist() if hasattr(values, "tolist") else values)
    if array.ndim == 2 and len(array) == 1:
        array = array[0]
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise FieldError(
            f"apply_chat_template of {type(tokenizer).__name__} returns no list of token ids with "
            f"tokenize=True and return_dict=True"
        )
    return array.astype(np.int64)


def _with_parsed_arguments(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_dict(call) for call in calls]}


def _with_dict(call: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = orjson.loads(call["function"]["arguments"])
    except orjson.JSONDecodeError:
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**call["function"], "arguments": arguments}}
