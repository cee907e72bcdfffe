#!/usr/bin/env python
"""Train a decoder on histories of items, without a head over the catalogue, and rank the whole
catalogue with it.

    python examples/items/train.py --train_file interactions.parquet --output_dir runs/items
    python examples/items/train.py --train_file interactions.parquet --objective vanilla \\
        --output_dir runs/softmax

A score is o E^T + tau log q. After every epoch validation chooses tau, and the weights with the
best recall@10 are saved. Figures of the test are in <output_dir>/items_results.json. recommend.py
uses what was trained.
"""

import json
import logging
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from histories import (
    FIRST_ID,
    FileArguments,
    HeldOut,
    catalogue,
    evaluation_rows,
    leave_one_out,
    read_interactions,
    token_ids,
    training_rows,
)
from ranking import TAUS, all_figures, rank_figures, target_ranks
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    EarlyStoppingCallback,
    GPT2Config,
    HfArgumentParser,
    set_seed,
)

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, VanillaTrainer
from headless_trainer.objective.prior import log_prior

logger = logging.getLogger("items")


@dataclass
class ItemArguments(FileArguments):
    """The interactions and the model."""

    train_file: list[str] = field(
        default_factory=list, metadata={"help": "Interactions: .parquet, .csv, .jsonl, .txt."}
    )
    max_seq_length: int = field(
        default=50, metadata={"help": "Items of a history that are read, the most recent ones."}
    )
    hidden_size: int = field(default=64, metadata={"help": "Width."})
    num_hidden_layers: int = field(default=2, metadata={"help": "Layers."})
    num_attention_heads: int = field(default=2, metadata={"help": "Attention heads."})
    dropout: float = field(
        default=0.5, metadata={"help": "Dropout of the embedding, the attention and the layers."}
    )
    keep_seen: bool = field(
        default=False, metadata={"help": "Rank items that the user had before too."}
    )


@dataclass
class ItemTrainingArguments(HeadlessTrainingArguments):
    """`HeadlessTrainingArguments` with defaults for histories of items."""

    task: str = "clm"
    sampled_negatives: int = field(
        default=4096,
        metadata={
            "help": (
                "Items drawn in each step as further candidates: a batch seldom has the rare ones."
            )
        },
    )
    num_train_epochs: float = 200
    learning_rate: float = 1e-3
    lr_scheduler_type: str = "constant"
    weight_decay: float = 0.01
    per_device_train_batch_size: int = 256
    per_device_eval_batch_size: int = 256
    train_sampling_strategy: str = "group_by_length"  # those of one length together cost no padding
    eval_strategy: str = "epoch"
    save_strategy: str = "epoch"
    save_total_limit: int = 2
    load_best_model_at_end: bool = True
    metric_for_best_model: str = "recall@10"
    early_stopping_patience: int = field(
        default=20,
        metadata={
            "help": "Evaluations without a better score before the training ends. 0 for all epochs."
        },
    )
    restore_callback_states_from_checkpoint: bool = True  # the patience that is left
    eval_pool_size: int = 512
    eval_full_vocabulary: bool = False  # every item is ranked already
    logging_steps: float = 100


class RankedCatalogue:
    """What both trainers add to an evaluation: tau with the best NDCG@10 on validation, and its
    figures.

    Trainer logs them, chooses the best checkpoint by them and tells its callbacks, as it does with
    figures of its own.

    Args:
        validation: next items to choose by.
        target_counts: ``(V,)`` int64 occurrences of each item as a target of training.
        keep_seen: rank what users had before too.
    """

    def __init__(
        self, *args, validation: HeldOut, target_counts: torch.Tensor, keep_seen: bool, **kwargs
    ):
        super().__init__(*args, **kwargs)
        self.validation = validation
        self.target_counts = target_counts
        self.keep_seen = keep_seen

    def log_frequencies(self) -> torch.Tensor:
        """``(V,)`` log frequency among the candidates of the run: a mixture of its targets and of
        what was drawn evenly.
        """
        log_q = log_prior(self.target_counts)
        if not self.window.drawn:
            return log_q
        drawn = self.window.drawn / self.window.candidates
        return torch.logaddexp(log_q + math.log1p(-drawn), torch.tensor(drawn / len(log_q)).log())

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs):
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        trunk = self.model.base_model
        ranks = target_ranks(
            trunk, self.log_frequencies(), self.validation, TAUS, keep_seen=self.keep_seen
        )
        figures = [rank_figures(each) for each in ranks]
        best = max(range(len(TAUS)), key=lambda place: figures[place]["ndcg@10"])
        found = {
            "tau": TAUS[best],
            **{name: figures[best][name] for name in ("ndcg@10", "recall@10")},
        }
        output.metrics.update(
            {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        )
        return output


class HeadlessItemTrainer(RankedCatalogue, HeadlessTrainer):
    pass


class VanillaItemTrainer(RankedCatalogue, VanillaTrainer):
    pass


def new_model(arguments: ItemArguments, objective: str, vocab_size: int):
    """A decoder as SASRec, with the architecture of GPT-2; with its tied head for the full
    softmax.
    """
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=arguments.max_seq_length,
        n_embd=arguments.hidden_size,
        n_layer=arguments.num_hidden_layers,
        n_head=arguments.num_attention_heads,
        activation_function="relu",
        bos_token_id=None,
        eos_token_id=None,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), arguments.dropout),
    )
    return (AutoModelForCausalLM if objective == "vanilla" else AutoModel).from_config(config)


class Patience(EarlyStoppingCallback):
    """Waits as long as the arguments say: a resume restores the checkpoint's patience, together
    with what was waited.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        self.early_stopping_patience = args.early_stopping_patience


def main(argv: list[str] | None = None) -> None:
    parser = HfArgumentParser(
        [ItemArguments, ItemTrainingArguments], description=__doc__.partition("\n")[0]
    )
    arguments, args = parser.parse_args_into_dataclasses(argv)
    if not arguments.train_file:
        parser.error("train_file is not given: name files of interactions with --train_file")
    if args.world_size > 1:
        parser.error(
            f"{args.world_size} processes were started, and items are ranked by one alone: start "
            "one"
        )
    if args.objective == "sampled_softmax":
        parser.error(
            "objective is 'sampled_softmax', which has no item trainer: use headless or vanilla"
        )
    if not args.load_best_model_at_end:
        parser.error(
            "load_best_model_at_end is False but tau is that of the best weights: leave it out"
        )
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    set_seed(args.seed)
    interactions = read_interactions(arguments.train_file, arguments)
    items = catalogue(interactions)
    _, histories = token_ids(interactions, items)
    train, validation, test = leave_one_out(histories, arguments.keep_seen)
    rows = training_rows(train, arguments.max_seq_length)
    size = FIRST_ID + len(items)
    # Any item of a row but the first is predicted from those before it.
    counts = np.bincount(np.concatenate([row["input_ids"][1:] for row in rows]), minlength=size)
    trainer = {"headless": HeadlessItemTrainer, "vanilla": VanillaItemTrainer}[args.objective](
        new_model(arguments, args.objective, size),
        args,
        train_dataset=rows,
        eval_dataset=evaluation_rows(validation, arguments.max_seq_length),
        validation=validation,
        target_counts=torch.from_numpy(counts),
        keep_seen=arguments.keep_seen,
    )
    if args.early_stopping_patience:
        trainer.add_callback(Patience())
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if trainer.signal.stopped:
        # With a checkpoint: --resume_from_checkpoint last goes on.
        sys.exit(trainer.signal.exit_code)
    trainer.save_model()
    trainer.save_state()
    save_results(trainer, items, validation, test)


def save_results(
    trainer: RankedCatalogue, items: list[str], validation: HeldOut, test: HeldOut
) -> None:
    """Write what recommend.py needs beside the best weights, and then their figures."""
    folder = Path(trainer.args.output_dir)
    state = trainer.state
    log_q = trainer.log_frequencies()
    tau = next(
        logs["eval_tau"]
        for logs in state.log_history
        if "eval_tau" in logs and logs["step"] == state.best_global_step
    )
    np.save(folder / "log_q.npy", log_q.numpy())
    known = {"tau": tau, "positions": "from the end", "items": items}
    (folder / "items.json").write_text(json.dumps(known, ensure_ascii=False), encoding="utf-8")
    found = {
        "tau": tau,
        "best_step": state.best_global_step,
        "epochs": state.epoch,
        "items": len(items),
    }
    trunk = trainer.model.base_model.eval()
    for name, part, weight in (
        ("validation", validation, tau),
        ("test", test, tau),
        ("test_at_tau_0", test, 0.0),
    ):
        figures = all_figures(trunk, log_q, part, weight, keep_seen=trainer.keep_seen)
        found |= {f"{name}_{key}": value for key, value in figures.items()}
    (folder / "items_results.json").write_text(json.dumps(found, indent=2) + "\n")
    if trainer.hub is not None:
        trainer.hub.push_run("End of training")  # with what was written since save_model
    logger.info(
        "tau %.2f: test NDCG@10 %.4f, recall@10 %.4f",
        tau,
        found["test_ndcg@10"],
        found["test_recall@10"],
    )


if __name__ == "__main__":
    main()
