"""benchmarks/candidates.py: sets of candidates beside the exact softmax."""

import argparse

import candidates
import pytest
import torch
from builders import QUIET, Tokenizer, tiny_model

from headless_trainer import HeadlessTrainingArguments
from headless_trainer.models.vocabulary_head import VocabularyHead
from headless_trainer.objective.prior import log_prior
from headless_trainer.trainers.step import TargetMaker

VOCAB = 50


@pytest.fixture
def subject(task, tmp_path) -> candidates.Subject:
    """A tiny model, and 40 rows of 16 tokens of which the lower ones are more frequent."""
    model = tiny_model(task, VOCAB, "vanilla").eval()
    # Larger weights: a new model predicts all tokens alike, which any candidates stand for.
    for weight in model.parameters():
        weight.data *= 6
    settings = HeadlessTrainingArguments(str(tmp_path), task=task, **QUIET)
    generator = torch.Generator().manual_seed(0)
    shares = 1.0 / torch.arange(1, VOCAB - 1)
    rows = 2 + torch.multinomial(shares, 40 * 16, True, generator=generator).view(40, 16)
    return candidates.Subject(
        model=model,
        head=VocabularyHead(model),
        task=task,
        make_targets=TargetMaker(task, model, Tokenizer(VOCAB), settings),
        rows=rows,
        counts=rows.flatten().bincount(minlength=VOCAB),
    )


def measured(subject: candidates.Subject, **amounts) -> dict:
    """What a set of candidates is worth."""
    args = argparse.Namespace(batches=3, batch_size=4, prediction_rows=8)
    prediction, batches = candidates.measure_model(subject, args)
    return candidates.compare(
        candidates.CandidateSet(**amounts),
        batches,
        subject.head,
        log_prior(subject.counts).exp(),
        prediction,
        repeats=2,
        generator=torch.Generator().manual_seed(1),
    )


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("draws", ["uniform", "predicted"])
def test_very_many_draws_come_to_the_exact_softmax(subject, draws, once):
    result = measured(subject, **{draws: 1_000_000}, once=once)
    assert result["distinct"] == VOCAB
    assert abs(result["bias"]) < 2e-3
    assert result["error"] < 0.01
    assert result["cosine"] > 0.9999
    assert result["spread"] < 0.01


def test_the_targets_of_a_step_alone_are_a_worse_estimate(subject):
    few = measured(subject)
    more = measured(subject, recent=200, predicted=500)
    assert few["distinct"] < more["distinct"] < VOCAB + 1
    assert few["error"] > more["error"]
    assert few["cosine"] < more["cosine"]


def test_recent_targets_are_those_of_the_rows_before_a_batch(subject):
    args = argparse.Namespace(batches=3, batch_size=4, prediction_rows=8)
    _, batches = candidates.measure_model(subject, args)
    first, second, _ = batches
    torch.testing.assert_close(second.recent, torch.cat([first.recent, first.targets]))
    if subject.task == "clm":  # every token but the first of a row is a target
        torch.testing.assert_close(first.recent, subject.rows[:28, 1:].flatten())


def test_every_set_is_compared_with_and_without_targets_that_count_once():
    args = argparse.Namespace(uniform=[10], recent=20, predicted=[30])
    labels = [each.label for each in candidates.sets_of(args)]
    assert labels[:4] == ["the step's targets", "the step's targets, once", "+ 10 uniform"] + [
        "+ 10 uniform, once"
    ]
    assert "+ 20 recent targets + 30 by mean prediction, once" in labels
    assert "+ 20 by frequency + 10 uniform" in labels
    assert len(labels) == len(set(labels)) == 18
