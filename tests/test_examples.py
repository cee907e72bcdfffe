"""examples/: each runs, small, and does what it says; a trainer of one's own on the
command line.
"""

import json

import pytest
import torch
from builders import DECODER, QUICK, save, tiny_model
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from examples import adapt, own_loss, pretrain
from headless_trainer.cli.pretrain import main
from headless_trainer.objective.negatives import NegativePool
from headless_trainer.trainers.step import Candidates
from headless_trainer.trainers.window import TrainingWindow

RUN = [*DECODER, *QUICK, "--max_steps", "2", "--save_strategy", "steps"]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def corpus(tmp_path, text_lines):
    (tmp_path / "corpus.txt").write_text("\n".join(text_lines[:200]) + "\n")
    return str(tmp_path / "corpus.txt")


@pytest.mark.slow
def test_pretrain(tmp_path, corpus, clm_tokenizer, monkeypatch):
    monkeypatch.setattr(pretrain, "ROWS", 4)
    clm_tokenizer.save_pretrained(tmp_path / "tokenizer")
    written = pretrain.main(corpus, str(tmp_path / "run"), str(tmp_path / "tokenizer"), steps=2)
    assert len(written) > 10 and (tmp_path / "run" / "token_counts.safetensors").is_file()


@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_adapt(tmp_path, corpus, task, tokenizer):
    base, kind = tmp_path / "base", AutoModelForCausalLM if task == "clm" else AutoModelForMaskedLM
    save(base, tiny_model(task, len(tokenizer), "vanilla"), tokenizer)
    before = kind.from_pretrained(base)
    found = adapt.main(str(base), corpus, str(tmp_path / "run"), steps=2)
    after, report = kind.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert (
        not report["missing_keys"] and not report["unexpected_keys"] and type(after) is type(before)
    )
    assert found["eval_cross_entropy"] > 0 and found["eval_loss"] == found["eval_cross_entropy"]


def test_the_loss_of_the_example_is_that_of_a_margin():
    outputs, vectors = (
        torch.randn(3, 4, dtype=torch.float64),
        torch.randn(4, 4, dtype=torch.float64),
    )
    ids = torch.tensor([5, 7, 5])
    pool = NegativePool.from_targets(torch.tensor([2, 5, 5, 7, 9, 9, 9]))
    part = Candidates(pool, pool.index_of(ids), None, torch.zeros_like(ids), torch.arange(len(ids)))
    trainer = own_loss.MarginTrainer.__new__(own_loss.MarginTrainer)
    trainer.window = TrainingWindow()
    found, want = trainer.pool_loss(outputs, part, vectors, None), 0.0
    for output, target in zip(outputs, (1, 2, 1), strict=True):
        scores = [
            output @ vector - own_loss.MARGIN * (place == target)
            for place, vector in enumerate(vectors)
        ]
        terms = [count * score.exp() for count, score in zip((1, 2, 1, 3), scores, strict=True)]
        want -= (scores[target].exp() / sum(terms)).log() + torch.tensor((1, 2, 1, 3)[target]).log()
    assert found.item() == pytest.approx(want.item(), rel=1e-6)


def test_a_trainer_of_ones_own_on_the_command_line(tmp_path, corpus):
    flags = [
        *RUN,
        "--train_file",
        corpus,
        "--output_dir",
        str(tmp_path / "run"),
        "--save_steps",
        "1",
    ]
    main([*flags, "--trainer", "examples.own_loss:MarginTrainer"])
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    assert all(0 <= logs["targets_that_win"] <= 1 for logs in history if "loss" in logs)
    assert (
        json.loads((tmp_path / "run" / "settings.json").read_text())["trainer"] == "MarginTrainer"
    )
    assert (
        "| trainer | examples.own_loss:MarginTrainer |"
        in (tmp_path / "run" / "README.md").read_text()
    )
    again = [*flags, "--max_steps", "3", "--resume_from_checkpoint", "last"]
    with pytest.raises(
        SystemExit,
        match="trainer is 'HeadlessTrainer' but checkpoint .* was written with 'MarginTr",
    ):
        main(again)


@pytest.mark.parametrize(("named", "said"), [
    ("nowhere:Class", "trainer is 'nowhere:Class', which does not exist .No module named 'nowhere'.: pass module:Class"),
    ("examples.own_loss:Other", "which does not exist .module 'examples.own_loss' has no attribute 'Other'"),
    ("headless_trainer:VanillaTrainer", "no subclass of HeadlessTrainer: set its base"),
])  # fmt: skip
def test_a_trainer_that_is_none(tmp_path, named, said):
    with pytest.raises(SystemExit, match=said):
        main([*RUN, "--output_dir", str(tmp_path), "--trainer", named])
