"""What `transformers.Trainer` offers around a training run works with our trainers as it does there, or is refused by name.

Settings and parameters of the constructor: tests/cli/test_refusals.py.
"""

import inspect

import pytest
from builders import CLASSES, VOCAB, encoded_rows, tiny_classifier, tiny_model, token_rows, trainer_for
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2ForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from headless_trainer.fine_tuning.classification import ClassificationTrainer

QUIET = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
STEPS = {
    "max_steps": 3, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 4,
    "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
}  # fmt: skip
EVENTS = [name for name, _ in inspect.getmembers(TrainerCallback, inspect.isfunction) if name.startswith("on_")]


class Events(TrainerCallback):
    """Keeps the names of events in their order."""

    def __init__(self):
        self.seen = []


for _name in EVENTS:
    setattr(Events, _name, lambda self, *_args, _name=_name, **_kwargs: self.seen.append(_name))


def classifier(folder, tokenizer, *, model=None, **parameters):
    settings = parameters.pop("settings", {})
    args = TrainingArguments(str(folder), **QUIET | {"max_steps": 2, "save_strategy": "no"} | settings)
    data = encoded_rows(CLASSES)
    return ClassificationTrainer(
        model, args, train_dataset=data, eval_dataset=data, processing_class=tokenizer, **parameters
    )


# Callbacks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["headless", "vanilla", "classification"])
def test_callbacks_have_the_events_of_transformers(tmp_path, clm_tokenizer, kind):
    plain, ours = Events(), Events()
    rows = [row | {"labels": row["input_ids"]} for row in token_rows(clm_tokenizer)]
    args = TrainingArguments(str(tmp_path / "plain"), **QUIET, **STEPS)
    model = tiny_model("clm", len(clm_tokenizer), "vanilla")
    # As many batches to evaluate as the others have.
    Trainer(model, args, train_dataset=rows, eval_dataset=rows[:10], callbacks=[plain]).train()
    if kind == "classification":
        model = tiny_classifier(num_labels=3)
        run = classifier(tmp_path / "ours", clm_tokenizer, model=model, settings=STEPS, callbacks=[ours])
        run.eval_dataset = encoded_rows(CLASSES[:10])
    else:
        run = trainer_for(tmp_path / "ours", "clm", clm_tokenizer, objective=kind, callbacks=[ours], **STEPS)
    run.train()
    assert ours.seen == plain.seen
    assert {"on_substep_end", "on_save", "on_evaluate", "on_prediction_step"} <= set(plain.seen)
    ours.seen.clear()
    run.predict(run.eval_dataset)
    assert ours.seen == ["on_prediction_step"] * 3 + ["on_predict"]


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_early_stopping(tmp_path, clm_tokenizer, objective):
    """With a rate of zero no evaluation is better than the first."""
    stop = EarlyStoppingCallback(early_stopping_patience=2)
    settings = STEPS | {"max_steps": 20, "eval_steps": 1, "save_steps": 1, "learning_rate": 0.0}
    settings |= {"load_best_model_at_end": True, "metric_for_best_model": "accuracy_without_bias"}
    if objective == "vanilla":
        settings["metric_for_best_model"] = "accuracy"
    run = trainer_for(tmp_path, "clm", clm_tokenizer, objective=objective, callbacks=[stop], **settings)
    run.train()
    assert run.state.global_step == 3 and run.state.best_global_step == 1


# Predictions and metrics -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_predict_gives_the_figures_of_an_evaluation(tmp_path, request, task, objective):
    run = trainer_for(tmp_path, task, request.getfixturevalue(f"{task}_tokenizer"), objective=objective)
    run.train()
    rows = token_rows(run.processing_class, 7, lengths=(12, 5))
    output, want = run.predict(rows), run.evaluate(rows)
    assert output.predictions is None and output.label_ids is None  # of a vocabulary, nobody could hold them
    names = [name for name in want if not name.endswith(("runtime", "_per_second", "epoch"))]
    assert "eval_accuracy" in names and "eval_loss" in names
    for name in names:
        assert output.metrics[name.replace("eval_", "test_")] == want[name], name
    assert "own_loss" in run.predict(rows, metric_key_prefix="own").metrics


# Models that are made anew -----------------------------------------------------------------------------------------------


def test_a_model_that_is_made_anew_learns_the_token_that_pads(tmp_path, clm_tokenizer):
    """That of a decoder ends texts as well; ``nn.Embedding`` would keep all gradients from its row."""

    def model_init():
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": VOCAB, "num_labels": 3}
        model = GPT2ForSequenceClassification(GPT2Config(pad_token_id=clm_tokenizer.pad_token_id, **sizes))
        model.get_input_embeddings().padding_idx = clm_tokenizer.pad_token_id  # as other decoders have it
        return model

    run = classifier(tmp_path, clm_tokenizer, model_init=model_init)
    assert run.model.get_input_embeddings().padding_idx is None
    run.train()
    assert run.model.get_input_embeddings().padding_idx is None


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_a_search_over_pretrainings_is_refused(tmp_path, clm_tokenizer, objective):
    run = trainer_for(tmp_path, "clm", clm_tokenizer, objective=objective)
    with pytest.raises(ValueError, match="hyperparameter_search"):
        run.hyperparameter_search(n_trials=1, backend="optuna")
