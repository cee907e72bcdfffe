"""The table of objectives: what each trains, which settings it reads, what it logs and what its
card says.

To add an objective, write its trainer and add a row here. Its name becomes a value of
``--objective``; loading, refusals, logs, cards and resuming read this table. A variant of an
objective is no row: it is a subclass of its trainer, named by ``--trainer`` (examples/own_loss.py).
"""

import pkgutil
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Objective:
    """A row of the table."""

    name: str  # the value of --objective
    explained: str  # in --help, after the name
    trainer: str  # module:Class, imported when it is needed: --help needs no torch
    trains_trunk: bool  # a model without a head (AutoModel), whose candidates are counted for log q
    reads: frozenset[str] = frozenset()  # settings that not every objective reads
    logs: frozenset[str] = frozenset()  # figures that not every objective logs
    draws_by_default: bool = False  # candidates besides targets, without sampled_negatives
    needs_frequency: bool = False  # of each token as a target, counted in the training rows
    needs_trained_head: bool = False  # refuses a checkpoint without one
    starts_head_bias: bool = False  # takes head_bias, which is refused elsewhere
    evaluates_pool: bool = False  # eval_loss is that of a fixed pool of candidates

    def trainer_class(self) -> type[Any]:
        return pkgutil.resolve_name(self.trainer)


# Read by every objective that scores candidates instead of the whole vocabulary.
_CANDIDATES = {"negatives", "pool_size", "sampled_negatives", "sparse_embedding_updates"}

OBJECTIVES = {
    objective.name: objective
    for objective in (
        Objective(
            "headless",
            "contrastive weight tying, without a head",
            "headless_trainer.trainers.headless:HeadlessTrainer",
            trains_trunk=True,
            # Its loss is one over candidates. Scores over the vocabulary, which cost what training
            # saves, come beside it, and can be left out.
            evaluates_pool=True,
            reads=frozenset(_CANDIDATES | {"eval_pool_size", "eval_full_vocabulary"}),
            logs=frozenset(
                {
                    "loss_floor",
                    "random_guess_loss",
                    "eval_pool_accuracy",
                    "eval_cross_entropy_without_bias",
                    "eval_accuracy_without_bias",
                    "eval_perplexity_without_bias",
                }
            ),
        ),
        Objective(
            "sampled_softmax",
            "continues a checkpoint with its own head, on candidates",
            "headless_trainer.trainers.sampled_softmax:SampledSoftmaxTrainer",
            trains_trunk=False,
            reads=frozenset(_CANDIDATES | {"exact_every"}),
            logs=frozenset({"exact_loss", "eval_unseen_token_mass"}),
            draws_by_default=True,
            # A candidate is weighted by its count in the pool over its expected count.
            needs_frequency=True,
            needs_trained_head=True,
        ),
        Objective(
            "vanilla",
            "the softmax over the whole vocabulary",
            "headless_trainer.trainers.vanilla:VanillaTrainer",
            trains_trunk=False,
            starts_head_bias=True,
        ),
    )
}


def objective_of(args) -> Objective:
    """Return the row of ``args.objective``."""
    return OBJECTIVES[args.objective]
