#!/usr/bin/env python
"""Measure which candidates stand for the vocabulary of a model on a text, without training.

    python benchmarks/candidates.py --model_name_or_path google/gemma-3-270m --train_file fr.txt.gz
    python benchmarks/candidates.py --model_name_or_path runs/bert --train_file new.txt \\
        --uniform 2000 4000 --recent 4000 --predicted 2000

Sampled softmax estimates the exact softmax from a set of candidates: the targets of the step, and
further tokens. Every set is compared with the exact softmax, by the model's own head, on the same
batches of the text:

- *distinct*: number of different candidates, which is what a step costs
- *bias*: the mean of the loss over candidates minus the exact loss, in nats
- *error* and *cosine*: relative error of the gradient at the outputs of the layers, and its cosine
  with the exact gradient
- *spread*: standard deviation, over batches and draws, of the loss minus the exact loss

The sets add to the targets of the step: *uniform* draws from the vocabulary; *recent* targets, of
the rows before the batch; draws by the *frequency* of tokens in the text; and *predicted* draws, by
the mean of the model's softmax over other rows, of which a share is uniform. *Once* means that a
target weighs 1 in its own row, as in the exact softmax, instead of its count over its expected
count. The loss, pools and draws are those of the library, whose sampled softmax trains with
predicted draws and *once*.

Letters used in shapes: R all rows, B rows of a batch, T tokens in a row, K predicted positions,
D width, V vocabulary size.
"""

import argparse
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from datasets import Dataset
from loss import machine, results_argument, write_results
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
)

from headless_trainer import HeadlessTrainingArguments
from headless_trainer.arguments import DataArguments
from headless_trainer.cards.facts import model_name, software
from headless_trainer.corpus.packing import target_counts, tokenize_and_pack
from headless_trainer.corpus.texts import load_texts
from headless_trainer.models.trunk import infer_task
from headless_trainer.models.vocabulary_head import VocabularyHead
from headless_trainer.objective.losses import candidate_loss, vocabulary_cross_entropy
from headless_trainer.objective.negatives import NegativePool
from headless_trainer.objective.prior import log_prior
from headless_trainer.presentation.tables import markdown
from headless_trainer.trainers.mean_prediction import MeanPrediction
from headless_trainer.trainers.step import TargetMaker, predictions

HEADINGS = ("candidates", "distinct", "bias of the loss", "error", "cosine", "spread")


@dataclass(frozen=True)
class CandidateSet:
    """What a set adds to the targets of a step, in tokens.

    Attributes:
        recent: targets of the rows before the batch.
        by_frequency: draws by the frequency of tokens in the text.
        uniform: draws from the whole vocabulary.
        predicted: draws by the mean prediction.
        once: whether a target weighs 1 in its own row.
    """

    recent: int = 0
    by_frequency: int = 0
    uniform: int = 0
    predicted: int = 0
    once: bool = False

    @property
    def label(self) -> str:
        """The set's name in the table."""
        amounts = {
            "recent targets": self.recent,
            "by frequency": self.by_frequency,
            "uniform": self.uniform,
            "by mean prediction": self.predicted,
        }
        parts = [f"{amount:,} {source}" for source, amount in amounts.items() if amount]
        label = "the step's targets"
        if parts:
            label = f"+ {' + '.join(parts)}"
        if self.once:
            label += ", once"
        return label


@dataclass(frozen=True)
class Batch:
    """The predictions of some rows, and their exact softmax.

    Attributes:
        hidden: ``(K, D)`` inputs of the vocabulary projection.
        targets: ``(K,)`` int64.
        recent: int64, the targets of earlier rows, the oldest first.
        loss: the exact cross-entropy, in nats.
        gradient: ``(K, D)``, of the exact loss with respect to ``hidden``.
    """

    hidden: Tensor
    targets: Tensor
    recent: Tensor
    loss: float
    gradient: Tensor


@dataclass(frozen=True)
class Subject:
    """A model and the rows of a text.

    Attributes:
        model: with its head, and frozen.
        head: the same, scoring only predicted positions.
        task: ``mlm`` or ``clm``.
        make_targets: draws inputs and labels of a batch, masked for mlm.
        rows: ``(R, T)`` ids in random order, as in training.
        counts: ``(V,)`` int64, how often each token is a target in the rows.
    """

    model: PreTrainedModel
    head: VocabularyHead
    task: str
    make_targets: TargetMaker
    rows: Tensor
    counts: Tensor

    def labelled(self, ids: Tensor) -> tuple[dict, Tensor, Tensor]:
        """Return inputs for ``(B, T)`` ids, the ``(K,)`` predicted positions, and their targets."""
        inputs = self.make_targets({"input_ids": ids}, step=0)
        predicted, targets = predictions(inputs.pop("labels"))
        return inputs, predicted, targets

    def outputs(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(K, D)`` inputs of the projection and ``(K,)`` targets, for ``(B, T)`` ids."""
        inputs, predicted, targets = self.labelled(ids)
        return self.head.hidden(self.model, inputs, predicted), targets

    def vectors(self) -> Tensor:
        """Return the ``(V, D)`` vectors that score the vocabulary."""
        return self.head.all_within(self.head.projection.weight)


def main() -> None:
    args = parse_arguments()
    subject = load(args)
    head = subject.head
    print(
        f"{model_name(args.model_name_or_path)} ({subject.task}, V = {head.size:,}), "
        f"{args.batches} batches of {args.batch_size} x {args.length} tokens, {args.repeats} draws "
        f"each, float32, "
        f"{machine('cpu')}, {software()['Versions']}\n",
        flush=True,
    )
    frequency = log_prior(subject.counts).exp()
    prediction, batches = measure_model(subject, args)
    generator = torch.Generator().manual_seed(args.seed)
    results = []
    for candidates in sets_of(args):
        result = compare(candidates, batches, head, frequency, prediction, args.repeats, generator)
        results.append(result)
    print(markdown(HEADINGS, [cells(result) for result in results], left=1))
    unseen = float(prediction.probabilities[subject.counts == 0].sum())
    print(f"\nShare of the mean prediction on tokens that the text never has: {100 * unseen:.1f} %")
    write_results(args.results_dir, {"sets": results, "mean_prediction_on_unseen_tokens": unseen})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model_name_or_path", required=True, help="A model with its head: a folder or a Hub name."
    )
    parser.add_argument("--train_file", nargs="+", required=True, help="The new texts.")
    parser.add_argument("--sample_by", default="line", choices=("line", "paragraph", "document"))
    parser.add_argument("--length", type=int, default=128, help="Tokens in a row.")
    parser.add_argument("--batch_size", type=int, default=4, help="Rows in a batch.")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3, help="Draws for each batch.")
    parser.add_argument("--mlm_probability", type=float, default=0.15)
    parser.add_argument("--rows", type=int, default=4_000, help="Of the text, for frequencies.")
    parser.add_argument("--uniform", type=int, nargs="*", default=[4_096, 16_384, 65_536])
    parser.add_argument("--recent", type=int, default=16_384, help="0 for none.")
    parser.add_argument("--predicted", type=int, nargs="*", default=[4_096, 16_384])
    parser.add_argument("--prediction_rows", type=int, default=24, help="For the mean prediction.")
    parser.add_argument("--seed", type=int, default=0)
    results_argument(parser)
    args = parser.parse_args()
    needed = args.prediction_rows + args.batches * args.batch_size
    if args.rows < needed:
        parser.error(f"--rows is {args.rows} but batches and mean prediction need {needed}.")
    return args


def sets_of(args: argparse.Namespace) -> Iterator[CandidateSet]:
    """Yield the sets to compare, each also with targets that weigh 1 in their own row."""
    # Combinations take the first of several amounts.
    sets = [CandidateSet()]
    sets += [CandidateSet(uniform=amount) for amount in args.uniform]
    if args.recent:
        sets += [CandidateSet(recent=args.recent), CandidateSet(by_frequency=args.recent)]
        for amount in args.uniform[:1]:
            sets.append(CandidateSet(recent=args.recent, uniform=amount))
            sets.append(CandidateSet(by_frequency=args.recent, uniform=amount))
    sets += [CandidateSet(predicted=amount) for amount in args.predicted]
    if args.recent:
        for amount in args.predicted[:1]:
            sets.append(CandidateSet(recent=args.recent, predicted=amount))
            sets.append(CandidateSet(by_frequency=args.recent, predicted=amount))
    for candidates in sets:
        yield candidates
        yield replace(candidates, once=True)


def load(args: argparse.Namespace) -> Subject:
    """Load the model, and the first rows of the text in random order."""
    source = args.model_name_or_path
    config = AutoConfig.from_pretrained(source)
    task = infer_task(config)
    model_class = AutoModelForMaskedLM if task == "mlm" else AutoModelForCausalLM
    model = model_class.from_pretrained(source, dtype=torch.float32).eval()
    # Gradients are those of its outputs.
    model.requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(source)
    settings = HeadlessTrainingArguments(task=task, use_cpu=True, seed=args.seed)
    settings.mlm_probability = args.mlm_probability
    texts = load_texts(
        DataArguments(train_file=args.train_file, sample_by=args.sample_by, streaming=True)
    )
    # Rows begin as those that a run trains on.
    stream = tokenize_and_pack(
        texts["train"], tokenizer, max_seq_length=args.length, begin_rows=task == "clm"
    )
    ids = np.stack([row["input_ids"] for row in itertools.islice(stream, args.rows)])
    np.random.default_rng(args.seed).shuffle(ids)
    head = VocabularyHead(model)
    return Subject(
        model=model,
        head=head,
        task=task,
        make_targets=TargetMaker(task, model, tokenizer, settings),
        rows=torch.from_numpy(ids).long(),
        counts=target_counts(Dataset.from_dict({"input_ids": ids}), head.size, task, tokenizer),
    )


def measure_model(subject: Subject, args: argparse.Namespace) -> tuple[MeanPrediction, list[Batch]]:
    """Run the model on the last rows: first those of the mean prediction, then the batches.

    The rows before them are only read, for their targets.
    """
    head = subject.head
    bias = head.projection.bias
    first = len(subject.rows) - args.batches * args.batch_size
    prediction = MeanPrediction(head.size, sum_over_processes=lambda values: values)
    for ids in subject.rows[first - args.prediction_rows : first].split(args.batch_size):
        hidden, _ = subject.outputs(ids)
        prediction.observe(hidden, subject.vectors(), bias, head.softcap)
    prediction.renew()

    _, _, targets = subject.labelled(subject.rows[:first])
    earlier = [targets]
    batches = []
    for ids in subject.rows[first:].split(args.batch_size):
        hidden, targets = subject.outputs(ids)
        outputs = hidden.clone().requires_grad_()
        loss = vocabulary_cross_entropy(
            outputs, targets, subject.vectors(), bias, softcap=head.softcap
        )
        (gradient,) = torch.autograd.grad(loss, outputs)
        batches.append(Batch(hidden, targets, torch.cat(earlier), loss.item(), gradient))
        earlier.append(targets)
    return prediction, batches


def compare(
    candidates: CandidateSet,
    batches: list[Batch],
    head: VocabularyHead,
    frequency: Tensor,
    prediction: MeanPrediction,
    repeats: int,
    generator: torch.Generator,
) -> dict:
    """Return how the loss over a set of candidates and its gradient differ from the exact ones."""
    distinct = []
    differences = []
    errors = []
    cosines = []
    for batch in batches:
        for _ in range(repeats):
            pool = pool_of(candidates, batch, frequency, prediction, generator)
            outputs = batch.hidden.clone().requires_grad_()
            loss = candidate_loss(
                outputs,
                pool.index_of(batch.targets),
                head.vectors(pool.ids),
                pool.log_weights(),
                bias=head.bias(pool.ids),
                softcap=head.softcap,
                target_counts_once=candidates.once,
            )
            (gradient,) = torch.autograd.grad(loss, outputs)
            distinct.append(len(pool))
            differences.append(loss.item() - batch.loss)
            errors.append(float((gradient - batch.gradient).norm() / batch.gradient.norm()))
            product = (gradient * batch.gradient).sum()
            cosines.append(float(product / gradient.norm() / batch.gradient.norm()))
    return {
        "label": candidates.label,
        **asdict(candidates),
        "distinct": statistics.mean(distinct),
        "bias": statistics.mean(differences),
        "error": statistics.mean(errors),
        "cosine": statistics.mean(cosines),
        "spread": statistics.stdev(differences),
    }


def pool_of(
    candidates: CandidateSet,
    batch: Batch,
    frequency: Tensor,
    prediction: MeanPrediction,
    generator: torch.Generator,
) -> NegativePool:
    """Draw a set of candidates, with the expected count of each.

    Recent targets and draws by frequency are expected as often as targets: by the frequency.
    """
    vocab_size = len(frequency)
    pool = NegativePool.from_targets(batch.targets)
    if candidates.recent:
        pool = pool.with_targets(batch.recent[-candidates.recent :])
    if candidates.by_frequency:
        draws = torch.multinomial(frequency, candidates.by_frequency, True, generator=generator)
        pool = pool.with_targets(draws)
    expected = pool.targets * frequency.double()
    if candidates.uniform:
        draws = torch.randint(vocab_size, (candidates.uniform,), generator=generator)
        pool = pool.with_drawn(draws)
        expected = expected + candidates.uniform / vocab_size
    if candidates.predicted:
        pool = pool.with_drawn(prediction.draw(candidates.predicted, generator))
        expected = expected + candidates.predicted * prediction.proposal
    return replace(pool, log_expected=expected[pool.ids].log().float())


def cells(result: dict) -> tuple[str, ...]:
    """Return the cells below ``HEADINGS``."""
    return (
        result["label"],
        f"{result['distinct']:,.0f}",
        f"{result['bias']:.3f}",
        f"{result['error']:.3f}",
        f"{result['cosine']:.3f}",
        f"{result['spread']:.3f}",
    )


if __name__ == "__main__":
    main()
