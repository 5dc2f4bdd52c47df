"""The README of an exported folder; `datasets.load_dataset` reads which files belong together."""

import json
from collections.abc import Mapping

CARD = "README.md"
_STEPS = """\
---
configs:
- config_name: steps
  data_files: steps-*.parquet
  default: true
- config_name: episodes
  data_files: episodes.parquet
---
# Steps of {buffer}

`steps-*.parquet` has a row for each step, `episodes.parquet` one for each episode. `state`,
`actions`, `messages` and `extra` are JSON texts. Typed fields of steps:

{fields}

    datasets.load_dataset("{path}")              # the steps
    datasets.load_dataset("{path}", "episodes")
    sqlbuffer import {path} URL                  # back into a buffer
"""
_ROLLOUTS = """\
---
configs:
- config_name: default
  data_files: train-*.parquet
---
# Rollouts of {buffer}: {form}

    datasets.load_dataset("{path}")
"""


def steps_card(buffer: str, path: str, fields: Mapping[str, object]) -> str:
    """Return the README of exported steps.

    Args:
        buffer: Name of the buffer.
        path: Name of the folder.
        fields: The typed fields.

    Example:
        >>> print(steps_card("cartpole", "out", {"obs": "float32(4,)"}).splitlines()[8])
        # Steps of "cartpole"
    """
    listed = "\n".join(f"- `{name}`: {spec}" for name, spec in fields.items()) or "- none"
    return _STEPS.format(buffer=json.dumps(buffer), path=path, fields=listed)


def rollouts_card(buffer: str, path: str, form: str) -> str:
    """Return the README of exported rollouts.

    Example:
        >>> print(rollouts_card("chats", "out", "messages").splitlines()[5])
        # Rollouts of "chats": messages
    """
    return _ROLLOUTS.format(buffer=json.dumps(buffer), path=path, form=form)
