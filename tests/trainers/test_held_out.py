"""Held-out figures: of every row once, with the counts that belong to the weights, and without a
trace in training.
"""

import math
import os
import random
from types import SimpleNamespace

import numpy as np
import processes
import pytest
import torch
from builders import VOCAB, Tokenizer, logged, make_trainer, tiny_model, trainer_for
from transformers import AutoModel, DataCollatorForLanguageModeling, TrainerCallback, set_seed

from headless_trainer import HeadlessTrainer, load_token_counts
from headless_trainer.objective.prior import log_prior
from headless_trainer.trainers.data_loading import COUNTS, HeldOutBatches, own_loader


class Stream(torch.utils.data.IterableDataset):
    """Rows that have no length."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def rows(count: int, first: int = 0) -> list[dict]:
    """Of different lengths and frequencies of tokens."""
    generator = torch.Generator().manual_seed(first)
    sizes = [9 + index % 4 for index in range(count)]
    return [
        {"input_ids": (torch.rand(size, generator=generator) ** 3 * (VOCAB - 2)).long() + 2}
        for size in sizes
    ]


def trainer(
    folder, model=None, *, held_out=None, token_counts=None, task="clm", **settings
) -> HeadlessTrainer:
    settings = {
        "max_steps": 3, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 3, "eval_pool_size": 30,
        "save_strategy": "no", "learning_rate": 1e-2, "task": task,
    } | settings  # fmt: skip
    return make_trainer(
        folder, model or tiny_model(task, layers=1, positions=16, dropout=0.0 if task == "clm" else 0.1), rows(24), settings,
        token_counts=token_counts, eval_dataset=rows(10, first=9) if held_out is None else held_out,
        processing_class=Tokenizer(),
    )  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [list, Stream])
def test_each_row_is_dealt_to_one_process(kind, workers):
    args = SimpleNamespace(
        dataloader_prefetch_factor=None,
        dataloader_multiprocessing_context=None,
        dataloader_pin_memory=False,
        seed=0,
    )
    for count, size, shares in [
        (11, 2, 1),
        (11, 2, 2),
        (11, 2, 3),
        (12, 2, 3),
        (1, 4, 3),
        (0, 2, 2),
        (7, 3, 2),
    ]:
        if workers and (count != 11 or kind is Stream):  # which no workers read
            continue
        batches = []
        for share in range(shares):
            part = HeldOutBatches(
                kind(range(count)), lambda numbers: {"numbers": numbers}, size, share, shares
            )
            loader = own_loader(args, part, workers, batch_size=None)
            batches.append([batch["numbers"] if batch[COUNTS] else [] for batch in loader])
            assert kind is Stream or len(loader) == len(batches[-1])
            assert list(part.rows()) == list(range(count))
        assert {len(own) for own in batches} == {math.ceil(count / size / shares)}, (
            "not as many on each"
        )
        seen = [batch for in_turn in zip(*batches, strict=True) for batch in in_turn if batch]
        assert seen == [list(range(count))[start : start + size] for start in range(0, count, size)]


class Once(Stream):
    """Rows that can be read once."""

    def __init__(self, rows):
        self.rows = iter(rows)


@pytest.mark.parametrize("pool_size", [30, 10_000])
def test_a_dataset_that_can_be_read_once_is_not_scored_on_what_the_pool_leaves(tmp_path, pool_size):
    """The pool takes a few of its rows, or all of them."""
    run = trainer(tmp_path, eval_pool_size=pool_size)
    with pytest.raises(ValueError, match="eval_dataset has no length .*pass 2.*read only once"):
        run.evaluate(Once(rows(40)))
    vanilla = trainer(
        tmp_path,
        tiny_model("clm", layers=1, positions=16, objective="vanilla"),
        objective="vanilla",
        eval_pool_size=pool_size,
    )
    # Nothing reads it before.
    want = vanilla.evaluate(rows(40))["eval_predicted_tokens"]
    assert vanilla.evaluate(Once(rows(40)))["eval_predicted_tokens"] == want


FIGURES = (
    "eval_loss",
    "eval_cross_entropy",
    "eval_accuracy",
    "eval_pool_accuracy",
    "eval_predicted_tokens",
)


def _evaluate(rank: int, folder: str, count: int) -> None:
    found = {}
    for task in ("clm", "mlm"):
        for kind in (list, Stream):
            run = trainer(
                folder,
                task=task,
                held_out=kind(rows(10, first=9)),
                token_counts=torch.arange(VOCAB),
            )
            found[task, kind.__name__] = run.evaluate() | {
                "rows": run.predict(run.eval_dataset).metrics["test_loss"]
            }
    if rank == 0:
        torch.save(found, os.path.join(folder, f"{count}.pt"))


@pytest.mark.slow
def test_figures_do_not_depend_on_the_number_of_processes(tmp_path):
    """Rows of several lengths in batches of 3, so that 2 and 3 processes end with rows that one has
    and another has not.
    """
    _evaluate(0, str(tmp_path), 1)
    for count in (2, 3):
        processes.run(_evaluate, count, str(tmp_path), count)
    one, two, three = (torch.load(tmp_path / f"{count}.pt") for count in (1, 2, 3))
    for case, want in one.items():
        assert want["eval_predicted_tokens"] > 10
        for other in (two[case], three[case]):
            for name in FIGURES:
                assert other[name] == pytest.approx(want[name], rel=1e-12)
            names = [
                name
                for name in want
                if name.startswith("eval_pool_") and name != "eval_pool_accuracy"
            ]
            assert {name: other[name] for name in names} == {
                name: want[name] for name in names
            } and len(names) == 2


def test_a_stream_scores_as_a_list(tmp_path):
    settings = {"token_counts": torch.arange(VOCAB)}
    one = trainer(tmp_path, held_out=rows(10, first=9), **settings).evaluate()
    other = trainer(
        tmp_path, held_out=Stream(rows(10, first=9)), dataloader_num_workers=2, **settings
    ).evaluate()
    assert {name: other[name] for name in FIGURES} == {name: one[name] for name in FIGURES}


def test_another_dataset_is_the_one_that_is_scored(tmp_path):
    run = trainer(tmp_path, held_out={"a": rows(10, first=9), "b": rows(4, first=5)}, dataloader_num_workers=1,
                  dataloader_persistent_workers=True)  # fmt: skip
    tokens = {"a": sum(9 + i % 4 for i in range(10)) - 10, "b": 9 + 10 + 11 + 12 - 4}
    metrics = run.evaluate()
    assert {name: metrics[f"eval_{name}_predicted_tokens"] for name in tokens} == tokens
    assert run.evaluate(rows(2))["eval_predicted_tokens"] == 9 + 10 - 2
    given = run.evaluate({"c": rows(1), "d": rows(4)})
    assert given["eval_c_predicted_tokens"] == 8 and given["eval_d_predicted_tokens"] == tokens["b"]
    assert run.predict(rows(1)).metrics["test_predicted_tokens"] == 8


@pytest.mark.parametrize("objective", ["headless", "sampled_softmax", "vanilla"])
def test_rows_without_a_target_have_no_figures(tmp_path, objective):
    unlabelled = {"input_ids": torch.arange(5, 12), "labels": torch.full((7,), -100)}
    run = make_trainer(
        tmp_path,
        tiny_model("clm", VOCAB, objective),
        rows(4),
        {"objective": objective, "task": "clm"},
        eval_dataset=[unlabelled] * 3,
        processing_class=Tokenizer(),
        token_counts=torch.ones(VOCAB, dtype=torch.long),
    )
    with pytest.raises(ValueError, match="eval_dataset has no token to predict"):
        run.evaluate()


def test_callbacks_of_an_evaluation_get_the_figures_of_the_new_rows(tmp_path):
    found = []

    class Keep(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **kwargs):
            found.append(metrics["eval_loss"])

    run = trainer(tmp_path, eval_strategy="steps", eval_steps=1)
    run.add_callback(Keep())
    run.old_eval_dataset = rows(4, first=5)
    run.train()
    assert (
        found == logged(run, "eval_loss") and len(logged(run, "eval_old_loss")) == len(found) == 3
    )


def test_a_collator_draws_the_same_in_each_evaluation_and_nothing_from_training(
    tmp_path, mlm_tokenizer
):
    run = trainer_for(tmp_path, "mlm", mlm_tokenizer, per_device_eval_batch_size=4)
    masked = DataCollatorForLanguageModeling(mlm_tokenizer)
    run.data_collator = lambda rows: masked(
        [
            {"input_ids": row["input_ids"][random.randrange(3) : 12 - np.random.randint(3)]}
            for row in rows
        ]
    )

    def draw():
        return random.random(), np.random.rand(), torch.rand(()).item()

    set_seed(0)
    want = draw()
    set_seed(0)
    first = run.evaluate()
    assert draw() == want
    second = run.evaluate()
    assert (
        all(first[name] == second[name] for name in FIGURES if name in first)
        and "eval_loss" in first
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_evaluating_leaves_the_training_as_it_is(tmp_path, device):
    """Dropout included: a data loader that starts would draw from the same numbers."""
    losses = []
    for settings in ({}, {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}):
        settings |= {
            "negatives": "step",
            "gradient_accumulation_steps": 2,
            "use_cpu": device == "cpu",
        }
        run = trainer(tmp_path, tiny_model("clm", layers=1, positions=16, dropout=0.2), **settings)
        run.train()
        losses.append(logged(run))
    assert (
        losses[0] == pytest.approx(losses[1], rel=0 if device == "cpu" else 1e-4, abs=0)
        and len(losses[0]) == 3
    )


def test_counts_come_with_the_checkpoint(tmp_path):
    run = trainer(tmp_path / "a")
    run.train()
    run.save_model()
    want = run.evaluate()
    loaded = trainer(tmp_path / "b", AutoModel.from_pretrained(tmp_path / "a"))
    got = loaded.evaluate()
    assert got["eval_perplexity"] == want["eval_perplexity"] != want["eval_perplexity_without_bias"]
    loaded.train()  # and what it is trained on is added to them
    loaded.save_model()
    first, both = (load_token_counts(tmp_path / name)[0] for name in "ab")
    assert first.sum() > 0 and torch.equal(both, 2 * first)  # the same rows in the same order


def test_counts_can_be_given(tmp_path):
    counts = torch.arange(VOCAB)
    run = trainer(tmp_path, token_counts=counts)
    ids = [row["input_ids"][None] for row in run.eval_dataset]
    log_q = log_prior(counts)
    with torch.no_grad():
        scores = [
            run.model.eval()(row).last_hidden_state[0, :-1] @ run.model.wte.weight.T + log_q
            for row in ids
        ]
    want = torch.nn.functional.cross_entropy(
        torch.cat(scores), torch.cat([row[0, 1:] for row in ids])
    )
    assert run.evaluate()["eval_cross_entropy"] == pytest.approx(want.item(), rel=1e-5)
    run.train()
    assert run.token_counts.sum() > counts.sum() and torch.equal(counts, torch.arange(VOCAB))


def test_without_counts_there_are_no_figures_of_the_free_head(tmp_path, caplog):
    metrics = trainer(tmp_path).evaluate()
    assert "No target was counted yet" in caplog.text and "or pass token_counts" in caplog.text
    assert {"eval_cross_entropy", "eval_accuracy", "eval_perplexity"}.isdisjoint(metrics)
    assert {"eval_cross_entropy_without_bias", "eval_accuracy_without_bias", "eval_loss"} <= set(
        metrics
    )


def test_scores_of_an_objective_are_taken_without_gradients(tmp_path):
    """A new objective whose scores come straight from the model's parameters can be evaluated as it
    is.
    """

    class Plain(HeadlessTrainer):
        def evaluation_scores(self, hidden, target_ids, pool, prior):
            return {
                "loss": 1
                - torch.nn.functional.cosine_similarity(
                    hidden, self.head.vectors(target_ids), dim=-1
                )
            }

    model, held_out = tiny_model("clm", layers=1, positions=16), rows(4)
    settings = {"task": "clm", "max_steps": 1, "save_strategy": "no"}
    run = make_trainer(
        tmp_path,
        model,
        held_out,
        settings,
        Plain,
        eval_dataset=held_out,
        processing_class=Tokenizer(),
    )
    assert 0 < run.evaluate()["eval_loss"] < 2
