"""The pages for users of other buffers run, are short, and name what is there and what is not."""

import re
from pathlib import Path

import pytest

from sqlbuffer import ReplayBuffer
from tests.docs.pages import SQLITE_URL, pages, text_of
from tests.support.sql import run, scalar

COMING_FROM = sorted(page for page in pages() if page.startswith("docs/coming-from/"))


def test_coming_from_aworld(read):
    page = read("docs/coming-from/aworld.md")
    from sqlbuffer.compat.aworld.common import ActionModel, Observation

    ((row, *_),) = page.names["tasks"]
    assert isinstance(row.exp_data.state, Observation)
    assert isinstance(row.exp_data.actions[0], ActionModel)
    assert ReplayBuffer.list(SQLITE_URL) == ["default"]


def test_coming_from_aworld_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat.aworld import ALTERNATIVES

    text = text_of("docs/coming-from/aworld.md")
    assert [name for name in ALTERNATIVES if f"`{name}`" not in text] == []
    assert {"SQLStorage", "InMemoryStorage", "MultiProcMemoryStorage"} <= set(
        re.findall(r"(\w+Storage)\(", text)
    )


def test_coming_from_memmap(read):
    pytest.importorskip("torch")
    page = read("docs/coming-from/memmap.md")
    assert page.names["batch"].state_.shape == (16, 3)
    assert Path("replay_data/replay.sqlite").exists()


def test_coming_from_memmap_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat import memmap
    from sqlbuffer.compat.memmap.errors import ALTERNATIVES

    text = text_of("docs/coming-from/memmap.md")
    classes = {name for name in ALTERNATIVES if name.startswith("ReplayBuffer")}
    classes |= {"ConcatReplayBuffer", "EpisodeCollector"}
    classes |= {name for name in memmap.__all__ if name.startswith("ReplayDataset")}
    assert {name for name in classes if f"`{name}`" not in text} == set()


def test_coming_from_minestudio(read):
    page = read("docs/coming-from/minestudio.md")
    assert page.names["part"].next_obs is None
    chunks = "SELECT count(*) FROM v_documents WHERE key LIKE 'minestudio/chunk/%'"
    assert scalar(SQLITE_URL, chunks) == 4


def test_coming_from_minestudio_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat import minestudio
    from sqlbuffer.compat.minestudio.alternatives import ALTERNATIVES
    from sqlbuffer.compat.minestudio.config import Config

    text = text_of("docs/coming-from/minestudio.md")
    types = {name for name in minestudio.__all__ if name.startswith(("Fragment", "Replay"))}
    types -= {"FragmentError", "FragmentNotFoundError", "FragmentTypeError"}
    records = {name for name in ALTERNATIVES if name.endswith(("Actor", "Record", "Manager"))}
    names = {*types, *records, *Config.model_fields}
    assert {name for name in names if not re.search(rf"`{name}\b", text)} == set()


@pytest.mark.slow
def test_coming_from_di_engine(read):
    page = read("docs/coming-from/di-engine.md")
    assert page.names["row"].exp_data.reward_t == 1.0
    assert Path("checkpoints/buffer.hkl").exists()


def test_coming_from_di_engine_names_what_the_package_has_and_has_not():
    from sqlbuffer.compat import ding
    from sqlbuffer.compat.ding.errors import ALTERNATIVES

    text = text_of("docs/coming-from/di-engine.md")
    classes = {name for name in [*ALTERNATIVES, *ding.__all__] if "Buffer" in name}
    classes -= {"UnknownBufferError"}
    assert {name for name in classes if f"`{name}`" not in text} == set()


def test_coming_from_reverb(read):
    page = read("docs/coming-from/dm-reverb.md")
    assert page.names["buffer"].flow().sampled == 32
    assert run(SQLITE_URL, "SELECT count(*) FROM v_episodes WHERE status = 'complete'") == [(5,)]
