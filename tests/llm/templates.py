"""A tokenizer of characters with chat templates, as those of transformers have them."""

import jinja2
from jinja2.ext import Extension

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# What the assistant has thought is left out of all answers but the last, as in Qwen 3.
FORGETFUL = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('|')[-1] }}"
    "{% else %}{{ m.content }}{% endif %};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# The prompt of an answer is not what the answer is written after.
UNSTABLE = (
    "{{ messages | length }}{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
)
MARKED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }};{% endgeneration %}{% else %}{{ m.content }};{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
# Around what a block of generation writes.
BEGIN, END = "\1", "\2"


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_marked")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _marked(self, caller):
        return BEGIN + caller() + END


class Characters:
    """Tokens are the code points of the characters that the template writes."""

    def __init__(self, template: str = PLAIN) -> None:
        self.chat_template, self.n_calls, self.tools = template, 0, None

    def apply_chat_template(
        self,
        messages,
        tools=None,
        add_generation_prompt=False,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=False,
    ):
        assert tokenize
        assert return_dict
        self.n_calls, self.tools = self.n_calls + 1, tools
        template = jinja2.Environment(extensions=[_Generation]).from_string(self.chat_template)
        text = template.render(messages=messages, add_generation_prompt=add_generation_prompt)
        ids, mask, is_answer = [], [], False
        for character in text:
            if character in (BEGIN, END):
                is_answer = character == BEGIN
            else:
                ids.append(ord(character))
                mask.append(int(is_answer))
        made = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        return {**made, "assistant_masks": mask} if return_assistant_tokens_mask else made


def text_of(ids) -> str:
    """Return the text that token ids stand for."""
    return "".join(map(chr, ids))
