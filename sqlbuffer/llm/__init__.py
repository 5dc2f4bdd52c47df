"""Rollouts of language models: as conversations, and as the tensors that a trainer needs."""

from sqlbuffer.llm.advantages import group_advantages
from sqlbuffer.llm.conversations import answer_messages, joined_messages, normal_message
from sqlbuffer.llm.padding import TokenBatch, padded
from sqlbuffer.llm.tokens import LLM_FIELDS, Rollout, TokenSequence, rollouts

__all__ = [
    "LLM_FIELDS",
    "Rollout",
    "TokenBatch",
    "TokenSequence",
    "answer_messages",
    "group_advantages",
    "joined_messages",
    "normal_message",
    "padded",
    "rollouts",
]
