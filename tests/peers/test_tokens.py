"""Tokens of rollouts with a tokenizer of transformers and a small model."""

from typing import Any

import numpy as np
import pytest
import torch

from sqlbuffer import ReplayBuffer
from sqlbuffer.llm import LLM_FIELDS
from tests.peers.tiny_models import SPECIAL, TEMPLATE, model, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")
MARKED = TEMPLATE.replace(
    "{{ message.content }}<|end|>",
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|end|>"
    "{% endgeneration %}{% else %}{{ message.content }}<|end|>{% endif %}",
)
END = SPECIAL.index("<|end|>")


def logprobs_of(net: Any, ids: Any, mask: Any = None, places: Any = None) -> torch.Tensor:
    """Return the log-probability of each token after those before it, shape (n, L); the first is
    0.
    """
    logits = net(input_ids=ids, attention_mask=mask, position_ids=places).logits[:, :-1]
    known = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(known, (1, 0))


def play(buffer: ReplayBuffer, net: Any, words: Any, sibling: int) -> None:
    """Sample a rollout of three turns, each of which goes on with the ids of the one before."""
    draws = torch.Generator().manual_seed(sibling)
    ids = words.apply_chat_template(
        [{"role": "user", "content": "what is"}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    with buffer.episode("sum", episode_id=f"sum/{sibling}", model_version=sibling) as episode:
        for _ in range(3):
            prompt, said, logprobs = list(ids), [], []
            for _ in range(2 + sibling):
                logits = net(input_ids=torch.tensor([ids])).logits[0, -1]
                probabilities = torch.softmax(logits, -1)
                token = int(torch.multinomial(probabilities, 1, generator=draws))
                said.append(token)
                logprobs.append(float(torch.log_softmax(logits, -1)[token]))
                ids = [*ids, token]
            episode.append(prompt_ids=prompt, completion_ids=said, logprobs=logprobs)
            ids = [*ids, END, *words("the sum")["input_ids"]]
        episode.end(reward=float(sibling % 2))


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_model_gives_each_token_the_probability_it_was_sampled_with(
    database_url: str, side: Any
) -> None:
    words = tokenizer()
    net = model(words)
    with ReplayBuffer(
        database_url, create=True, fields=LLM_FIELDS, leases=True, max_use=1
    ) as buffer:
        with torch.no_grad():
            for sibling in range(4):
                play(buffer, net, words, sibling)
        with buffer.lease(1, group_by="task_id", min_group_size=4, timeout_s=0) as batch:
            tokens = batch.padded(padding_side=side, pad_token_id=words.pad_token_id, device="cpu")
    assert tokens.input_ids.shape[0] == 4
    known = logprobs_of(net, tokens.input_ids, tokens.attention_mask, tokens.position_ids)
    assert tokens.loss_mask.sum() == 3 * (2 + 3 + 4 + 5)
    torch.testing.assert_close(
        known[tokens.loss_mask], tokens.logprobs[tokens.loss_mask], rtol=1e-3, atol=1e-4
    )
    assert not tokens.logprobs[~tokens.loss_mask].any()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    ratio = torch.exp(known - tokens.logprobs)
    loss = -(ratio * tokens.advantage[:, None])[tokens.loss_mask].mean()
    loss.backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert any(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


@pytest.mark.parametrize("template", [TEMPLATE, MARKED], ids=["prefixes", "generation"])
def test_a_tokenizer_of_transformers_makes_what_was_not_stored(
    sqlite_url: str, template: str
) -> None:
    words = tokenizer()
    words.chat_template = template
    talk = [("what is it", "the sum"), ("é, and?", "日本 it is")]
    with ReplayBuffer(sqlite_url) as buffer:
        with buffer.episode("sum", episode_id="0") as episode:
            for asked, said in talk:
                answer = {"role": "assistant", "content": said}
                episode.append(messages=[{"role": "user", "content": asked}], actions=[answer])
        (rollout,) = buffer.sample_tasks(1).rollouts(tokenizer=words)
    (sequence,) = rollout.sequences
    whole = words.apply_chat_template(
        rollout.messages, return_dict=True, return_assistant_tokens_mask=template is MARKED
    )
    assert sequence.ids.tolist() == whole["input_ids"]
    if template is MARKED:
        assert sequence.loss_mask.tolist() == list(map(bool, whole["assistant_masks"]))
    said = words.decode(sequence.ids[sequence.loss_mask])
    assert said.replace(" ", "") == "thesum<|end|>日本itis<|end|>"  # it puts spaces before words
    assert np.isnan(sequence.logprobs[sequence.loss_mask]).all()
