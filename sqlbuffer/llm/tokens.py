"""Rollouts of language models as sequences of tokens."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sqlbuffer.checks import checked_dict, checked_iterable, refused
from sqlbuffer.errors import FieldError
from sqlbuffer.llm.conversations import Message, conversation_of
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
        status: `complete`, `aborted`, `abandoned` or `open`; None if the episode has left the
            buffer since it was drawn.
        reward: Reward of the episode, or else the sum of its steps' rewards; None without both, or
            if the episode has left.
        meta: Meta of the episode; None without any.
        turns: Its steps, in their order.
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
    tokenizer: Any = None

    @property
    def messages(self) -> list[Message]:
        """The conversation; see `joined_messages`.

        Raises:
            FieldError: A step holds something that is not a message.
        """
        return self._conversation[0]

    @cached_property
    def _conversation(self) -> tuple[list[Message], list[int]]:
        """The messages, and the place of the turn that each one came with."""
        return conversation_of(self.turns)

    @cached_property
    def sequences(self) -> list[TokenSequence]:
        """The tokens of its turns.

        A turn goes on with a sequence of the same agent if its prompt begins with exactly that
        sequence, prompt and completion. Else, as after compaction, another sequence begins. A turn
        without ids is left out if others of the rollout have some. The tokenizer of `rollouts`
        makes what is missing; ids that were sampled are never made again.

        Raises:
            FieldError: Token ids are missing and there is no tokenizer, or `logprobs` or
                `loss_mask` has another length than `completion_ids`.
        """
        return _sequences(self)

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
        facts: What is known of the episodes; None: nothing, and each counts as open.
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
        return EpisodeFacts("complete", None, None)
    if facts is None:
        return EpisodeFacts("open", None, None)
    return facts.get((meta.episode_id, meta.task_id))


def _rollout(
    number: int, turns: list[DataRow], known: EpisodeFacts | None, tokenizer: Any
) -> Rollout:
    meta = turns[0].exp_meta
    status, reward, of_episode = None, None, None
    if known is not None:
        status, reward = known.status, known.reward
        of_episode = None if known.meta is None else orjson.loads(known.meta)
        rewards = [turn.exp_data.reward_t for turn in turns if turn.exp_data.reward_t is not None]
        if reward is None and rewards:
            reward = float(sum(rewards))
    return Rollout(
        meta.task_id, meta.group_id or meta.task_id, number, meta.episode_id, status, reward,
        of_episode, turns, tokenizer,
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
    is_made: bool

    def sampled(self, who: Callable[[], str]) -> tuple[NDArray[Any], ...]:
        """Return loss mask, logprobs and versions of the completion tokens."""
        n, version = len(self.completion), self.row.exp_meta.model_version
        mask = _aligned(self.row, "loss_mask", n, who)
        mask = np.ones(n, np.bool_) if mask is None else mask.astype(np.bool_)
        logprobs = _aligned(self.row, "logprobs", n, who)
        logprobs = np.full(n, np.nan) if logprobs is None else logprobs
        version = NO_VERSION if version is None else version
        return (
            mask,
            np.where(mask, logprobs, 0).astype(np.float32),
            np.where(mask, version, NO_VERSION),
        )


def _sequences(rollout: Rollout) -> list[TokenSequence]:
    completions = [_ids(row, "completion_ids") for row in rollout.turns]
    if any(ids is not None for ids in completions):
        turns = [
            _stored_turn(rollout, place, ids)
            for place, ids in enumerate(completions)
            if ids is not None
        ]
    else:
        whole = _whole_by_template(rollout)
        if whole is not None:
            return [whole]
        turns = _made_turns(rollout)
    sequences: list[TokenSequence] = []
    agents: list[str] = []  # of the sequences
    for turn in turns:
        agent_id = turn.row.exp_meta.agent_id
        for place in reversed(range(len(sequences))):
            if agents[place] == agent_id and _begins_with(turn.prompt, sequences[place].ids):
                sequences[place] = _joined(rollout, sequences[place], turn)
                break
        else:
            agents.append(agent_id)
            sequences.append(_joined(rollout, _EMPTY, turn))
    return sequences


_EMPTY = TokenSequence(
    np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.float32), np.empty(0, np.int64),
    [], False,
)  # fmt: skip


def _begins_with(prompt: NDArray[np.int64], ids: NDArray[np.int64]) -> bool:
    return len(prompt) >= len(ids) and bool(np.array_equal(prompt[: len(ids)], ids))


def _joined(rollout: Rollout, before: TokenSequence, turn: _Turn) -> TokenSequence:
    asked = turn.prompt[len(before) :]
    mask, logprobs, versions = turn.sampled(lambda: _name(rollout, turn.place))
    n = len(asked)
    return TokenSequence(
        np.concatenate([before.ids, asked, turn.completion]),
        np.concatenate([before.loss_mask, np.zeros(n, np.bool_), mask]),
        np.concatenate([before.logprobs, np.zeros(n, np.float32), logprobs]),
        np.concatenate([before.versions, np.full(n, NO_VERSION), versions]),
        [*before.turns, turn.place],
        before.is_made or turn.is_made,
    )


def _ids(row: DataRow, name: str) -> NDArray[np.int64] | None:
    """Return token ids of a step; None if it has none."""
    ids = row.fields.get(name)
    return None if ids is None or len(ids) == 0 else np.asarray(ids, np.int64)


def _aligned(row: DataRow, name: str, n: int, who: Callable[[], str]) -> NDArray[Any] | None:
    """Return values of the completion tokens; None where they were left out."""
    values = row.fields.get(name)
    if values is None or len(values) == 0:
        return None
    if len(values) != n:
        raise FieldError(
            f"{who()}: {name} has {len(values)} values for {n} completion tokens; give one for "
            f"each, or leave it out"
        )
    return np.asarray(values)


def _name(rollout: Rollout, place: int) -> str:
    return (
        f"task {rollout.task_id!r}, episode {rollout.episode_id!r}, turn {place} "
        f"(seq {rollout.turns[place].seq})"
    )


def _stored_turn(rollout: Rollout, place: int, completion: NDArray[np.int64]) -> _Turn:
    """Return a turn whose completion is stored."""
    row = rollout.turns[place]
    prompt = _ids(row, "prompt_ids")
    if prompt is not None:
        return _Turn(place, row, prompt, completion, False)
    if rollout.tokenizer is None:
        raise FieldError(
            f"{_name(rollout, place)}: it has completion_ids and no prompt_ids; store both, or "
            f"give tokenizer=... to make the prompt from its messages"
        )
    answers = [answer for answer, turn in _answers(rollout) if turn == place]
    n_asked = answers[0] if answers else len(rollout.messages)
    prompt = _template_ids(rollout, rollout.messages[:n_asked], add_generation_prompt=True)
    return _Turn(place, row, prompt, completion, True)


def _answers(rollout: Rollout) -> list[tuple[int, int]]:
    """Return the places of the assistant's messages, each with that of its turn."""
    messages, turn_of = rollout._conversation
    return [
        (place, turn_of[place])
        for place, message in enumerate(messages)
        if message["role"] == "assistant"
    ]


def _made_turns(rollout: Rollout) -> list[_Turn]:
    """Return the turns of a rollout without token ids, as the tokenizer makes them."""
    turns = []
    for answer, place in _answers(rollout):
        prompt = _template_ids(rollout, rollout.messages[:answer], add_generation_prompt=True)
        whole = _template_ids(rollout, rollout.messages[: answer + 1])
        if not _begins_with(whole, prompt):
            raise FieldError(
                f"{_name(rollout, place)}: the chat template writes an answer differently after "
                f"its prompt, so no mask can be made; mark answers with a generation block in the "
                f"template, or store token ids (sqlbuffer.llm.LLM_FIELDS)"
            )
        turns.append(_Turn(place, rollout.turns[place], prompt, whole[len(prompt) :], True))
    return turns


def _whole_by_template(rollout: Rollout) -> TokenSequence | None:
    """Return the tokens of a conversation with the template's own mask; None: it has no mask."""
    if rollout.tokenizer is None:
        raise FieldError(
            f"task {rollout.task_id!r}, episode {rollout.episode_id!r}: no turn has token ids; "
            f"store them in fields=sqlbuffer.llm.LLM_FIELDS, or give tokenizer=... to make them "
            f"from the messages"
        )
    template = getattr(rollout.tokenizer, "chat_template", None)
    if not isinstance(template, str) or not _GENERATION.search(template):
        return None
    made = _by_template(rollout, rollout.messages, return_assistant_tokens_mask=True)
    if not isinstance(made, Mapping) or not any(made.get("assistant_masks") or ()):
        return None
    ids, mask = np.array(made["input_ids"], np.int64), np.array(made["assistant_masks"], np.bool_)
    return TokenSequence(
        ids, mask, np.where(mask, np.nan, 0).astype(np.float32), _versions(rollout, mask),
        list(range(len(rollout.turns))), True,
    )  # fmt: skip


def _versions(rollout: Rollout, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the version of each token of a conversation: that of the turn of its answer, or the
    oldest one where the mask does not tell the answers apart.
    """
    all_versions = [turn.exp_meta.model_version for turn in rollout.turns]
    known = [NO_VERSION if version is None else version for version in all_versions]
    of_answers = [known[turn] for _, turn in _answers(rollout)]
    begins = mask & ~np.concatenate([[False], mask[:-1]])
    if int(begins.sum()) != len(of_answers):
        of_answers = [min(known)] * int(begins.sum())
    answer_of = np.cumsum(begins) - 1
    return np.where(mask, np.array([*of_answers, NO_VERSION])[answer_of], NO_VERSION)


def _template_ids(
    rollout: Rollout, messages: Sequence[Message], **options: Any
) -> NDArray[np.int64]:
    made = _by_template(rollout, messages, **options)
    return np.array(made["input_ids"] if isinstance(made, Mapping) else made, np.int64)


def _by_template(rollout: Rollout, messages: Sequence[Message], **options: Any) -> Any:
    tools = (rollout.meta or {}).get("tools")
    if tools:
        options["tools"] = tools
    return rollout.tokenizer.apply_chat_template(
        list(messages), tokenize=True, return_dict=True, **options
    )
