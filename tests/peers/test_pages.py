"""The pages about other libraries run with these libraries."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sqlbuffer import ReplayBuffer
from tests.docs.conftest import read
from tests.docs.pages import fenced_blocks, text_of
from tests.docs.tutorial_pictures import SETTINGS, curves, with_both_schemes
from tests.support.markdown import ROOT

__all__ = ["read"]
pytestmark = pytest.mark.filterwarnings("ignore")


def test_hugging_face(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    page = read("docs/how-to/export-to-hugging-face.md")
    assert page.names["dataset"].num_shards == 4
    assert len(page.names["pairs"]) == 2


def test_minari(read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    page = read("docs/how-to/exchange-minari-data-sets.md")
    assert page.names["dataset"].env_spec.id == "CartPole-v1"


def test_coming_from_cpprb(read: Any) -> None:
    page = read("docs/coming-from/cpprb.md")
    (one, other) = (page.names[name].get_all_transitions() for name in ("rb", "again"))
    assert {name: len(values) for name, values in other.items()} == dict.fromkeys(one, 100)


def test_coming_from_cpprb_names_what_cpprb_has() -> None:
    import cpprb

    text = text_of("docs/coming-from/cpprb.md")
    classes = {name for name in dir(cpprb) if name.endswith("ReplayBuffer")}
    classes -= {"PyReplayBuffer", "SelectiveReplayBuffer"}  # its own base, and one of old times
    calls = {name for name in dir(cpprb.ReplayBuffer) if not name.startswith(("_", "get_b"))}
    calls -= {"get_current_episode_len", "get_next_index", "is_Nstep"}
    assert {name for name in classes | calls if f"`{name}" not in text.replace("rb.", "")} == set()


def test_offline_rl(read: Any) -> None:
    """The page, with a twentieth of its steps."""
    smaller = {
        "EPISODES, LENGTH = 1_000, 1_000": "EPISODES, LENGTH = 50, 1_000",
        "EPOCHS = 1024, 2": "EPOCHS = 256, 2",
    }
    page = read("docs/tutorials/offline-rl.md", smaller)
    assert max(page.names["after"]) > page.names["before"]
    assert len(ReplayBuffer("sqlite:///replay.db", name="chase")) == 50_000


def test_interchange(read: Any) -> None:
    page = read("docs/how-to/export-and-import.md")
    assert len(page.names["buffer"]) == 60
    assert len(ReplayBuffer("sqlite:///imported.db", name="robot")) == 60


def test_appending_files(read: Any) -> None:
    assert read("docs/how-to/append-parquet-files.md").names["report"].n_stored == 2


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="allowed: matplotlib is not installed")
def test_dqn(read: Any) -> None:
    page = read("docs/tutorials/dqn.md")
    assert page.names["last"] > 80  # a random policy gets 22
    assert Path("learning-curve.svg").stat().st_size > 10_000


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="allowed: matplotlib is not installed")
def test_the_curve_of_the_dqn_page_is_what_its_code_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib
    import pandas

    shown = (ROOT / "docs" / "images" / "tutorial-dqn.svg").read_text(encoding="utf-8")
    returns = curves(shown)[0].round()[:, 1]
    names = {"episodes": pandas.DataFrame({"length": returns, "episode_return": returns})}
    blocks = fenced_blocks("docs/tutorials/dqn.md")
    (code,) = (block.body for block in blocks if "savefig" in block.body)
    monkeypatch.chdir(tmp_path)
    with matplotlib.rc_context(SETTINGS):
        exec(code, names)
    drawn = with_both_schemes(Path("learning-curve.svg").read_text(encoding="utf-8"))
    assert drawn == shown, "run `make tutorial-pictures`"


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="allowed: matplotlib is not installed")
def test_dataframes(read: Any) -> None:
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        page = read("docs/tutorials/dataframes.md")
    assert len(page.names["episodes"]) == 120
    drawn = with_both_schemes(Path("balance.svg").read_text(encoding="utf-8"))
    shown = (ROOT / "docs" / "images" / "tutorial-dataframes.svg").read_text(encoding="utf-8")
    assert drawn == shown, "run `make tutorial-pictures`"
