"""Settings and model are checked once: by a command before it reads its texts, or by a trainer."""

import pytest
import torch
from builders import VOCAB, Tokenizer, tiny_model, token_rows

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments
from headless_trainer.models.trunk import drop_pooler
from headless_trainer.trainers import pretraining
from headless_trainer.trainers.checks import CheckedModel, check_model, check_settings


def settings_of(folder, **settings) -> HeadlessTrainingArguments:
    return HeadlessTrainingArguments(
        str(folder), max_steps=1, use_cpu=True, task="clm", report_to="none", **settings
    )


def checked_model(args, tokenizer, trainer_class=HeadlessTrainer) -> CheckedModel:
    """Check a new model as a command does."""
    model = tiny_model("clm", VOCAB, "headless")
    drop_pooler(model)
    settings = check_settings(args, trainer_class)
    return check_model(settings, model, tokenizer, trainer_class.head_class)


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """The names of the checks that a trainer makes itself."""
    made = []
    for check in (check_settings, check_model):

        def noted(*args, check=check, **kwargs):
            made.append(check.__name__)
            return check(*args, **kwargs)

        monkeypatch.setattr(pretraining, check.__name__, noted)
    return made


def make_trainer(trainer_class, checked, args, tokenizer):
    return trainer_class(
        checked.model,
        args,
        train_dataset=token_rows(tokenizer, 4),
        processing_class=tokenizer,
        checked=checked,
    )


def test_what_a_command_has_checked_is_not_checked_again(tmp_path, calls):
    args = settings_of(tmp_path)
    tokenizer = Tokenizer()
    checked = checked_model(args, tokenizer)
    trainer = make_trainer(HeadlessTrainer, checked, args, tokenizer)
    assert calls == []
    assert trainer.make_targets is checked.make_targets


def test_a_trainer_made_in_python_checks_both(tmp_path, calls):
    args = settings_of(tmp_path)
    model = tiny_model("clm", VOCAB, "headless")
    HeadlessTrainer(model, args, train_dataset=token_rows(Tokenizer(), 4))
    assert calls == ["check_settings", "check_model"]


def test_other_settings_than_the_checked_ones_are_checked(tmp_path, calls):
    tokenizer = Tokenizer()
    checked = checked_model(settings_of(tmp_path), tokenizer)
    others = settings_of(tmp_path, metric_for_best_model="bleu")
    with pytest.raises(ValueError, match="metric_for_best_model is 'bleu'"):
        make_trainer(HeadlessTrainer, checked, others, tokenizer)
    assert calls == ["check_settings"]


class FrozenEmbedding(HeadlessTrainer):
    """Trains a model of its own instead of the one that it gets."""

    def trained_part(self, model):
        other = super().trained_part(tiny_model("clm", VOCAB, "headless"))
        other.get_input_embeddings().requires_grad_(False)
        return other


def test_a_trainer_that_trains_another_model_than_the_checked_one_checks_that_one(tmp_path, calls):
    args = settings_of(tmp_path, sparse_embedding_updates=True)
    tokenizer = Tokenizer()
    checked = checked_model(args, tokenizer, FrozenEmbedding)
    with pytest.raises(ValueError, match="sparse_embedding_updates is True but the embedding"):
        make_trainer(FrozenEmbedding, checked, args, tokenizer)
    assert calls == ["check_model"]


def test_the_tokenizer_of_the_rows_is_the_checked_one(tmp_path):
    args = settings_of(tmp_path)
    tokenizer = Tokenizer()
    checked = checked_model(args, tokenizer)
    assert checked.is_of(checked.model, tokenizer)
    assert not checked.is_of(checked.model, Tokenizer())
    assert not checked.is_of(torch.nn.Identity(), tokenizer)
