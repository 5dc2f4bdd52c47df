"""The pages about other libraries run with these libraries."""

from pathlib import Path
from typing import Any

import pytest

from sqlbuffer import ReplayBuffer
from tests.docs.conftest import read

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


def test_interchange(read: Any) -> None:
    page = read("docs/how-to/export-and-import.md")
    assert len(page.names["buffer"]) == 60
    assert len(ReplayBuffer("sqlite:///piped.db", name="robot")) == 60
