"""What `transformers.Trainer` offers around a training run works with our trainers as it does there, or is refused by name.

Settings and parameters of the constructor: tests/cli/test_refusals.py.
"""

import inspect
import sys
from types import SimpleNamespace

import pytest
import torch
from builders import CLASSES, encoded_rows, tiny_classifier, tiny_model, token_rows, trainer_for
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.hyperparameter_search import ALL_HYPERPARAMETER_SEARCH_BACKENDS
from transformers.trainer_utils import BestRun, HPSearchBackend

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
        run = classifier(
            tmp_path / "ours", clm_tokenizer, model=tiny_classifier(num_labels=3), settings=STEPS, callbacks=[ours]
        )
        run.eval_dataset = encoded_rows(CLASSES[:10])
    else:
        run = trainer_for(tmp_path / "ours", "clm", clm_tokenizer, objective=kind, callbacks=[ours], **STEPS)
    run.train()
    assert ours.seen == plain.seen and {"on_substep_end", "on_save", "on_evaluate", "on_prediction_step"} <= set(
        plain.seen
    )
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


def test_logits_are_preprocessed_for_metrics(tmp_path, mlm_tokenizer):
    seen = []

    def compute(found):
        seen.append(found)
        return {"right": float((found.predictions == found.label_ids).mean())}

    run = classifier(
        tmp_path, mlm_tokenizer, model=tiny_classifier(num_labels=3), compute_metrics=compute,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
    )  # fmt: skip
    metrics = run.evaluate()
    assert seen[0].predictions.shape == (len(CLASSES),)
    output = ClassificationTrainer(
        run.model, run.args, eval_dataset=run.eval_dataset, processing_class=mlm_tokenizer
    ).predict(run.eval_dataset)
    want = (output.predictions.argmax(-1) == output.label_ids).mean()
    assert metrics["eval_right"] == pytest.approx(want) and 0 < want < 1


# Models that are made anew -----------------------------------------------------------------------------------------------


class Trial(SimpleNamespace):
    """What a search hands to ``hp_space``, as optuna's do."""

    def suggest_float(self, name, *_range, **_kwargs):
        self.params[name] = self.value
        return self.value


class Search:
    """A backend that tries given rates in turn, in the place of one that is not installed."""

    rates = (0.0, 3e-2, 0.0)

    def ensure_available(self):
        pass

    def run(self, trainer, n_trials, direction, **kwargs):
        found = []
        for number, rate in enumerate(self.rates[:n_trials]):
            trainer.train(
                trial=Trial(number=number, value=rate, params={}, report=lambda *_: None, should_prune=lambda: False)
            )
            found.append(trainer.compute_objective(trainer.evaluate()))
        best = min(range(len(found)), key=found.__getitem__)
        self.found.append(found)
        return BestRun(str(best), found[best], {"learning_rate": self.rates[best]})


def test_a_search_trains_a_new_model_in_each_trial(tmp_path, mlm_tokenizer, monkeypatch):
    monkeypatch.setattr(Search, "found", [], raising=False)
    monkeypatch.setitem(ALL_HYPERPARAMETER_SEARCH_BACKENDS, HPSearchBackend.OPTUNA, Search)
    monkeypatch.setitem(sys.modules, "optuna", SimpleNamespace(trial=SimpleNamespace(BaseTrial=Trial)))
    monkeypatch.setattr("transformers.integrations.integration_utils.is_optuna_available", lambda: True)
    made = []

    def model_init(trial):
        made.append(trial)
        return tiny_classifier(num_labels=3)

    settings = {"max_steps": 8, "per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 8}
    run = classifier(tmp_path, mlm_tokenizer, model_init=model_init, settings=settings, loss="cross_entropy")
    best = run.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 0.0, 1.0)}, n_trials=3, backend="optuna"
    )
    assert (best.run_id, best.hyperparameters) == ("1", {"learning_rate": 3e-2})
    (losses,) = Search.found
    assert losses[0] == losses[2] > losses[1] + 0.01  # the third began anew, and learnt nothing again
    assert len(made) == 4 and made[0] is None  # one where the trainer was made
    assert sorted(path.parent.name for path in tmp_path.glob("run-*/checkpoint-8")) == ["run-0", "run-1", "run-2"]


def test_a_model_that_is_made_anew_learns_the_token_that_pads(tmp_path, clm_tokenizer):
    """That of a decoder ends texts as well; ``nn.Embedding`` would keep all gradients from its row."""
    from builders import VOCAB
    from transformers import GPT2Config, GPT2ForSequenceClassification

    def model_init():
        torch.manual_seed(0)
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": VOCAB}
        model = GPT2ForSequenceClassification(
            GPT2Config(num_labels=3, pad_token_id=clm_tokenizer.pad_token_id, **sizes)
        )
        model.get_input_embeddings().padding_idx = clm_tokenizer.pad_token_id  # as other decoders have it
        return model

    run = classifier(tmp_path, clm_tokenizer, model_init=model_init)
    assert run.model.get_input_embeddings().padding_idx is None
    run.train()
    assert run.model.get_input_embeddings().padding_idx is None


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_a_search_over_pretrainings_is_refused(tmp_path, clm_tokenizer, objective):
    run = trainer_for(tmp_path, "clm", clm_tokenizer, objective=objective)
    with pytest.raises(ValueError, match="hyperparameter_search .*a trainer and an output_dir for each"):
        run.hyperparameter_search(n_trials=1, backend="optuna")
