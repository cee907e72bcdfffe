"""The trainer of classifiers: gradients against plain torch, refusals, signals and processes."""

import os
import signal
from functools import partial

import numpy as np
import processes
import pytest
import torch
import torch.nn.functional as F
from builders import CLASSES, QUIET, VOCAB, Gradients, encoded_rows, tiny_classifier
from datasets import Dataset
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    TrainerCallback,
    TrainingArguments,
)

from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.fine_tuning.classification_rows import (
    ClassificationCollator,
)
from headless_trainer.fine_tuning.problems import MULTI_LABEL


def gpt2(cls=GPT2ForSequenceClassification, vocab_size=VOCAB, **settings):
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "pad_token_id": 0}
    silent = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return cls(GPT2Config(vocab_size=vocab_size, **sizes, **silent, **settings))


NUMBERS = np.linspace(0, 5, 32).astype(np.float32)


CHOICES = [0] * 25 + [1] * 7


LABELS = MULTI_LABEL.encode([[0], [], [1, 2], [0, 1, 2]] * 8, 3)  # any number of three labels


def step_gradients(model, rows, tmp_path, split, **kwargs):
    """Gradients and logged loss of one step over 32 rows, in ``split``: (rows of a micro-batch,
    micro-batches).
    """
    args = TrainingArguments(
        tmp_path, per_device_train_batch_size=split[0], gradient_accumulation_steps=split[1], max_steps=1,
        learning_rate=0.0, max_grad_norm=0.0, save_strategy="no", dataloader_pin_memory=False, **QUIET,
    )  # fmt: skip
    trainer = ClassificationTrainer(
        model, args, ClassificationCollator(None), train_dataset=rows, **kwargs
    )
    gradients = Gradients()
    trainer.add_callback(gradients)
    trainer.train()
    return gradients.kept, trainer.state.log_history[0]["loss"]


def naive(model, rows: Dataset, loss: str) -> dict[str, torch.Tensor]:
    """The loss of all rows as one batch, row by row and without padding, as its
    definition has it.
    """
    model.zero_grad()
    scores, labels = [], torch.tensor(rows["label"][:])
    for row in rows:
        scores.append(
            torch.cat([model(input_ids=torch.tensor([ids])).logits[0] for ids in row["input_ids"]])
        )
    scores = torch.stack(scores)
    if labels.dim() == 2:
        value = torch.nn.BCEWithLogitsLoss()(scores, labels)
    elif labels.is_floating_point():
        value = torch.nn.MSELoss()(scores[:, 0], labels)
    elif loss == "cross_entropy":
        value = torch.stack(
            [-row.log_softmax(-1)[label] for row, label in zip(scores, labels, strict=True)]
        ).mean()
    else:
        means = [F.cross_entropy(scores[labels == c], labels[labels == c]) for c in labels.unique()]
        value = sum(means) / len(means)
    value.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None} | {
        "loss": value.detach()
    }


@pytest.mark.parametrize("make", [tiny_classifier, gpt2])
@pytest.mark.parametrize("kind, loss", [
    *(("classes", "balanced"), ("classes", "cross_entropy"), ("choices", "balanced")),
    *(("labels", "binary_cross_entropy"), ("numbers", "squared_error"), ("numbers", "balanced")),
])  # fmt: skip
def test_any_split_of_a_step_has_the_gradient_of_all_its_rows(tmp_path, make, kind, loss):
    labels, outputs, candidates = {
        "classes": (CLASSES, 3, 1), "choices": (CHOICES, 1, 2), "labels": (LABELS, 3, 1), "numbers": (NUMBERS, 1, 1),
    }[kind]  # fmt: skip
    rows = encoded_rows(labels, candidates)
    want = naive(make(num_labels=outputs).train(), rows, loss)
    value = want.pop("loss").item()
    assert sum(grad.abs().sum() for grad in want.values()) > 0
    for split in [(32, 1), (8, 4)]:
        got, logged = step_gradients(make(num_labels=outputs), rows, tmp_path, split, loss=loss)
        assert got.keys() == want.keys() and logged == pytest.approx(value, rel=1e-5)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_scores_of_candidates_are_compared_within_their_row(tmp_path):
    rows, model = encoded_rows(CHOICES, candidates=2), tiny_classifier(num_labels=1).eval()
    args = TrainingArguments(
        tmp_path, per_device_eval_batch_size=5, use_cpu=True, dataloader_pin_memory=False
    )
    output = ClassificationTrainer(model, args, ClassificationCollator(None)).predict(rows)
    assert output.predictions.shape == (32, 2) and output.label_ids.tolist() == CHOICES
    with torch.no_grad():
        for row, found in zip(rows, output.predictions, strict=True):
            want = [
                model(input_ids=torch.tensor(each)[None]).logits.item() for each in row["input_ids"]
            ]
            assert found.tolist() == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("loss, changes, message", [
    ("focal", {}, "loss must be one of balanced, cross_entropy, .*, got 'focal'"),
    ("balanced", {"label_smoothing_factor": 0.1}, "label_smoothing_factor is 0.1"),
])  # fmt: skip
def test_settings_that_cannot_work_are_refused(tmp_path, loss, changes, message):
    args = TrainingArguments(tmp_path, use_cpu=True, **changes)
    with pytest.raises(ValueError, match=message):
        ClassificationTrainer(tiny_classifier(), args, ClassificationCollator(None), loss=loss)


@pytest.mark.parametrize(
    "labels, outputs, loss",
    [(LABELS, 3, torch.nn.BCEWithLogitsLoss()), (NUMBERS, 1, torch.nn.MSELoss())],
)
def test_the_loss_of_an_evaluation_is_that_of_torch(tmp_path, labels, outputs, loss):
    args = TrainingArguments(tmp_path, use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True)
    trainer = ClassificationTrainer(
        tiny_classifier(num_labels=outputs), args, ClassificationCollator(None)
    )
    found = trainer.predict(encoded_rows(labels))
    scores, references = torch.from_numpy(found.predictions), torch.from_numpy(found.label_ids)
    want = loss(scores.reshape(references.shape), references).item()
    assert found.metrics["test_loss"] == pytest.approx(want, rel=1e-5)


def test_tf32_stays_off_beside_torch_compile_and_16_bit_weights_are_told(tmp_path, caplog):
    model, args = tiny_classifier().to(torch.bfloat16), TrainingArguments(tmp_path, tf32=False)
    torch.backends.cuda.matmul.allow_tf32 = True  # as accelerate does, for the whole process
    ClassificationTrainer(model, args, ClassificationCollator(None))
    assert (
        not torch.backends.cuda.matmul.allow_tf32
        and "16-bit weights, which lose small updates" in caplog.text
    )


def test_the_checkpoint_of_a_signal_stays_beside_the_best(tmp_path):
    def end(trainer, args, state, control, **kwargs):
        trainer.signal._heard = signal.SIGTERM * (state.global_step == 2)

    args = TrainingArguments(
        tmp_path, max_steps=4, save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1, save_total_limit=1,
        load_best_model_at_end=True, metric_for_best_model="loss", learning_rate=1.0, **QUIET,
    )  # fmt: skip
    rows = encoded_rows(CLASSES)
    trainer = ClassificationTrainer(tiny_classifier(num_labels=3), args, ClassificationCollator(None), train_dataset=rows,
                                    eval_dataset=rows)  # fmt: skip
    trainer.add_callback(type("End", (TrainerCallback,), {"on_step_end": partial(end, trainer)}))
    trainer.train()
    assert trainer.state.global_step == 2 and (tmp_path / "checkpoint-2").is_dir()


def test_labels_beyond_the_head_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"labels must be in \[0, 2\) for 2 classes, got 0 to 2"):
        step_gradients(tiny_classifier(num_labels=2), encoded_rows(CLASSES), tmp_path, (32, 1))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    model = tiny_classifier(num_labels=3)
    model.classifier.bias.data[0] = torch.nan
    said = r"The loss is nan at step 1, so the run stops. Lower [\w ,]+ max_grad_norm.$"
    with pytest.raises(FloatingPointError, match=said):
        step_gradients(model, encoded_rows(CLASSES), tmp_path, (32, 1))
    trainer = ClassificationTrainer(
        model, TrainingArguments(tmp_path, **QUIET), ClassificationCollator(None)
    )
    with pytest.raises(
        FloatingPointError, match="of classifier.bias are not finite after step 0 and are not saved"
    ):
        trainer.save_model()
    model = tiny_classifier(num_labels=3)
    model.classifier.weight.register_hook(lambda gradient: gradient / 0)
    with pytest.raises(FloatingPointError, match="The norm of the gradient is (nan|inf) at step 1"):
        step_gradients(model, encoded_rows(CLASSES), tmp_path, (32, 1))


def _process(rank: int, folder: str) -> None:
    found, loss = step_gradients(
        tiny_classifier(num_labels=3), encoded_rows(CLASSES), folder, (4, 4)
    )
    if rank == 0:
        torch.save((found, loss), os.path.join(folder, "found.pt"))


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_one(tmp_path):
    processes.run(_process, 2, str(tmp_path))
    found, loss = torch.load(tmp_path / "found.pt")
    want = naive(tiny_classifier(num_labels=3), encoded_rows(CLASSES), "balanced")
    assert loss == pytest.approx(want.pop("loss").item(), rel=1e-5)
    for name, grad in want.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_metrics_of_a_user_get_the_rows_in_their_order(tmp_path, method):
    seen, args = [], TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    run = ClassificationTrainer(
        tiny_classifier(num_labels=10), args, ClassificationCollator(None), train_dataset=encoded_rows([0.0, 1.0]),
        compute_metrics=lambda found: seen.append(found.label_ids) or {},
    )  # fmt: skip
    getattr(run, method)(encoded_rows(range(10)))
    assert seen[0].tolist() == [*range(10)]
    with pytest.raises(ValueError, match="labels are numbers but the model has 10 outputs"):
        run.train()
