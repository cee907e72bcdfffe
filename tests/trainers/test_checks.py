"""Settings and model are checked once: by a command before it reads its texts, or by a trainer."""

import pytest
import torch
from builders import VOCAB, Tokenizer, tiny_model, token_rows
from transformers import AlbertConfig, AlbertModel
from transformers.trainer_pt_utils import AcceleratorConfig

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments
from headless_trainer.models.trunk import drop_pooler
from headless_trainer.trainers import pretraining
from headless_trainer.trainers.checks import CheckedModel, check_model, check_settings
from headless_trainer.trainers.step import TargetMaker


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


NAMED_SETS = {"evaluation_sets": ("wiki", "code")}


@pytest.mark.parametrize("metric", ["loss", "eval_loss", "wikki_loss", "wiki_bleu"])
def test_a_metric_without_the_name_of_one_of_several_sets_is_refused(tmp_path, metric):
    args = settings_of(tmp_path, metric_for_best_model=metric)
    with pytest.raises(ValueError, match="must be one of .*code_loss.*wiki_loss"):
        check_settings(args, HeadlessTrainer, **NAMED_SETS)


@pytest.mark.parametrize("metric", ["wiki_loss", "eval_code_accuracy"])
def test_a_metric_with_the_name_of_its_set_is_accepted(tmp_path, metric):
    args = settings_of(tmp_path, metric_for_best_model=metric)
    assert check_settings(args, HeadlessTrainer, **NAMED_SETS).args is args


def test_a_trainer_refuses_the_metric_of_one_set_where_it_has_several(tmp_path):
    args = settings_of(tmp_path, metric_for_best_model="loss")
    rows = token_rows(Tokenizer(), 4)
    with pytest.raises(ValueError, match="metric_for_best_model is 'loss'"):
        HeadlessTrainer(
            tiny_model("clm", VOCAB, "headless"),
            args,
            train_dataset=rows,
            eval_dataset={"wiki": rows, "code": rows},
        )


def test_processes_need_even_batches(tmp_path, monkeypatch):
    uneven = AcceleratorConfig(even_batches=False)
    args = settings_of(tmp_path, accelerator_config=uneven)
    check_settings(args, HeadlessTrainer)
    monkeypatch.setattr(HeadlessTrainingArguments, "world_size", 2)
    with pytest.raises(ValueError, match="without even_batches the processes would wait"):
        check_settings(args, HeadlessTrainer)


def albert() -> AlbertModel:
    sizes = {"hidden_size": 8, "embedding_size": 8, "intermediate_size": 8}
    return AlbertModel(
        AlbertConfig(vocab_size=VOCAB, num_attention_heads=1, num_hidden_layers=1, **sizes)
    )


def test_a_model_that_cannot_compute_activations_again_is_refused(tmp_path):
    name = "activation_checkpointing"
    if not hasattr(settings_of(tmp_path), name):  # before transformers 5.23
        name = "gradient_checkpointing"
    args = settings_of(tmp_path, **{name: True})
    args.task = "mlm"
    with pytest.raises(ValueError, match=f"{name} is True but AlbertModel cannot compute"):
        HeadlessTrainer(albert(), args, processing_class=Tokenizer())


def test_a_model_whose_outputs_have_no_names_is_refused(tmp_path):
    model = tiny_model("clm", VOCAB, "headless")
    model.config.return_dict = False
    with pytest.raises(ValueError, match="return_dict is False in the model's configuration"):
        HeadlessTrainer(model, settings_of(tmp_path))


def test_a_mask_token_beyond_the_embedding_is_refused(tmp_path):
    tokenizer = Tokenizer()
    tokenizer.mask_token_id = VOCAB  # ids begin with 0
    model = tiny_model("mlm", VOCAB, "headless")
    with pytest.raises(ValueError, match=f"The mask token has the id {VOCAB} but the embedding"):
        TargetMaker("mlm", model, tokenizer, settings_of(tmp_path))


def test_no_clipping_may_be_given_as_none(tmp_path):
    rows = token_rows(Tokenizer(), 4)
    args = settings_of(tmp_path, max_grad_norm=None)
    trainer = HeadlessTrainer(tiny_model("clm", VOCAB, "headless"), args, train_dataset=rows)
    assert trainer.args.max_grad_norm == 0.0
    assert trainer.train().global_step == 1
