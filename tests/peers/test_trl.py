"""TRL's trainers on rollouts: one step of each, from the buffer and from the exported folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from sqlbuffer.interchange import export_rollouts, to_hf
from tests.peers.rollouts import store_rollouts
from tests.peers.tiny_models import model, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")
TRAINERS = {
    "messages": (SFTTrainer, SFTConfig),
    "prompt_completion": (SFTTrainer, SFTConfig),
    "preference": (DPOTrainer, DPOConfig),
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def train(form: str, dataset: Any, folder: Path) -> None:
    """Take one step of training and check that it has changed the model."""
    trainer_type, config_type = TRAINERS[form]
    words = tokenizer()
    config = config_type(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=2, report_to=[],
        use_cpu=True, save_strategy="no", bf16=False, max_length=512, learning_rate=1e-2,
    )  # fmt: skip
    reference = {"ref_model": model(words)} if form == "preference" else {}
    trainer = trainer_type(
        model=model(words), args=config, train_dataset=dataset, processing_class=words, **reference
    )
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    loss = trainer.train().training_loss
    assert loss > 0
    after = trainer.model.parameters()
    assert any(not torch.equal(one, two) for one, two in zip(before, after, strict=True))


@pytest.mark.parametrize("form", TRAINERS)
def test_a_trainer_takes_a_step_from_the_buffer(
    database_url: str, tmp_path: Path, form: Any
) -> None:
    with store_rollouts(database_url) as buffer:
        train(form, to_hf(buffer, form), tmp_path)


@pytest.mark.parametrize("form", TRAINERS)
def test_a_trainer_takes_a_step_from_an_exported_folder(
    sqlite_url: str, tmp_path: Path, form: Any
) -> None:
    with store_rollouts(sqlite_url) as buffer:
        export_rollouts(buffer, tmp_path / "out", form)
    cache = str(tmp_path / "cache")
    train(form, load_dataset(str(tmp_path / "out"), split="train", cache_dir=cache), tmp_path)
