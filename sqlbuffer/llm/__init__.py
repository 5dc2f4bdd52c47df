"""Rollouts of language models: as conversations, and as the tensors that a trainer needs."""

from sqlbuffer.llm.advantages import group_advantages
from sqlbuffer.llm.conversations import (
    Conversation,
    Message,
    answer_messages,
    conversation,
    joined_messages,
    messages_row,
    normal_message,
    preference_row,
    prompt_completion_row,
    prompt_length,
)
from sqlbuffer.llm.padding import TokenBatch, padded
from sqlbuffer.llm.tokens import LLM_FIELDS, Rollout, TokenSequence, rollouts

__all__ = [
    "LLM_FIELDS",
    "Conversation",
    "Message",
    "Rollout",
    "TokenBatch",
    "TokenSequence",
    "answer_messages",
    "conversation",
    "group_advantages",
    "joined_messages",
    "messages_row",
    "normal_message",
    "padded",
    "preference_row",
    "prompt_completion_row",
    "prompt_length",
    "rollouts",
]
