"""Arguments of `headless-trainer items`, and of `headless-trainer recommend`."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformers.hf_argparser import HfArg

from ..arguments import HeadlessTrainingArguments
from ..settings_check import Refusal, refuse

# `from __future__ import annotations` must stay out of this file: HfArgumentParser reads the annotations as types.

DRAWN = 4096  # sampled_negatives by default
SPLIT = (
    Refusal(
        "test_share",
        "split is 'leave_one_out', which holds out the last two items of each user: set --split global_time, or leave it out",
        lambda args: args.split != "global_time",
    ),
)
TRAINING = (
    Refusal("isolate_documents", "a row is the history of one user, and nothing else is in it: leave it out"),
    Refusal(
        "eval_strategy save_strategy",
        "the weights of the best evaluation are saved: set eval_strategy and save_strategy both to epoch, or both to steps",
        lambda args: args.eval_strategy == "no" or args.save_strategy not in (args.eval_strategy, "best"),
    ),
)
NO_LIST = Refusal(
    "top_k keep_seen", "output_file is not given, so no list is written: add it", lambda a: not a.output_file
)
NO_USERS = Refusal(
    "tau batch_size user_column item_column time_column lines_begin_with",
    "history_file is not given, so no user is read: add it",
    lambda args: not args.history_file,
)
OTHER_FORMATS = (".csv", ".tsv", ".parquet", ".gz")


@dataclass
class ColumnArguments:
    """How files of interactions are read."""

    user_column: str = HfArg(default="user", help="Column of a table that holds the user.")
    item_column: str = HfArg(default="item", help="Column of a table that holds the item.")
    time_column: str = HfArg(default="time", help="Column of a table that holds the time, as numbers or dates.")
    lines_begin_with: Literal["auto", "user", "item"] = HfArg(
        default="auto", help="What comes first in a line of a .txt file. auto: the user, if no two lines begin alike."
    )

    def __post_init__(self):
        names = {name: getattr(self, name) for name in ("user_column", "item_column", "time_column")}
        for value in names.values():
            alike = [each for each in names if names[each] == value]
            if len(alike) > 1:
                raise ValueError(f"{' and '.join(alike)} are both {value!r}: name different columns.")

    def columns(self) -> dict[str, str]:
        names = ("user_column", "item_column", "time_column", "lines_begin_with")
        return {name: getattr(self, name) for name in names}


@dataclass
class ItemArguments(ColumnArguments):
    """The interactions, how they are split, and the model."""

    train_file: list[str] | None = HfArg(
        default=None,
        help="Interactions: tables (.parquet, .csv, .jsonl) with a user, an item and a time in each row, or .txt with the "
        "history of one user a line, oldest item first. Files, folders or globs; all but .parquet also as .gz.",
    )
    min_item_count: int = HfArg(default=1, help="Items with fewer occurrences are left out.")
    split: Literal["leave_one_out", "global_time"] = HfArg(
        default="leave_one_out",
        help="leave_one_out: the last item of each user is the test, the one before it validation. global_time: the last "
        "part of all interactions is the test.",
    )
    test_share: float = HfArg(
        default=0.1, help="Of global_time: share of the interactions in the test, and as many in validation."
    )
    max_seq_length: int = HfArg(default=50, help="Items of a history that the model reads, the most recent ones.")
    model_type: Literal["gpt2", "bert"] | None = HfArg(
        default=None, help="gpt2 predicts the next item, bert masked ones. As --task says by default, else gpt2."
    )
    hidden_size: int = HfArg(default=64, help="Width.")
    num_hidden_layers: int = HfArg(default=2, help="Layers.")
    num_attention_heads: int = HfArg(default=2, help="Attention heads.")
    dropout: float = HfArg(default=0.5, help="Dropout of the embedding, the attention and the layers.")
    keep_seen: bool = HfArg(default=False, help="Rank items that the user had before too.")
    early_stopping_patience: int = HfArg(
        default=5, help="Evaluations without a better NDCG@10 on validation before training ends. 0 for all epochs."
    )

    def __post_init__(self):
        if not self.train_file:
            raise ValueError("train_file is not given: name files of interactions with --train_file.")
        super().__post_init__()
        for name in ("min_item_count", "hidden_size", "num_hidden_layers", "num_attention_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.max_seq_length < 2:
            raise ValueError(f"max_seq_length must be at least 2, got {self.max_seq_length}.")
        if not 0 < self.test_share < 0.5:
            raise ValueError(f"test_share must be above 0 and below 0.5, got {self.test_share}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be from 0 to below 1, got {self.dropout}.")
        if self.early_stopping_patience < 0:
            raise ValueError(f"early_stopping_patience must not be negative, got {self.early_stopping_patience}.")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size is {self.hidden_size} but num_attention_heads is {self.num_attention_heads}, which does not "
                "divide it: change one of the two."
            )
        refuse(self, SPLIT)


@dataclass
class ItemTrainingArguments(HeadlessTrainingArguments):
    """`HeadlessTrainingArguments` with defaults for histories of items.

    An evaluation and a checkpoint come after every epoch, and the best one by NDCG@10 on validation is what is saved.
    """

    ranks_items = True  # what is logged of it is in the table of measures

    sampled_negatives: int | None = HfArg(
        default=None,
        help="Items drawn in each step as further candidates, since the rare ones are seldom among the batch's own. 4,096 by "
        "default, and none where the loss has no room for them (vanilla, log_q_correction).",
    )
    num_train_epochs: float = HfArg(default=50, help="Passes over the histories at most.")
    learning_rate: float = HfArg(default=1e-3, help="Peak learning rate.")
    lr_scheduler_type: str = HfArg(default="constant", help="Learning rate schedule.")
    weight_decay: float = HfArg(default=0.01, help="Weight decay.")
    per_device_train_batch_size: int = HfArg(default=256, help="Histories in a batch.")
    per_device_eval_batch_size: int = HfArg(default=256, help="Histories in a batch of an evaluation.")
    train_sampling_strategy: Literal["random", "sequential", "group_by_length", "batch_rebalance"] = HfArg(
        default="group_by_length", help="Order of the histories. Those of one length together cost no padding."
    )
    eval_strategy: str = HfArg(default="epoch", help="When to evaluate.")
    save_strategy: str = HfArg(default="epoch", help="When to save a checkpoint: when it is evaluated.")
    save_total_limit: int | None = HfArg(default=2, help="Checkpoints to keep, the best one among them.")
    load_best_model_at_end: bool = HfArg(default=True, help="Save the best weights, and not the last.")
    metric_for_best_model: str | None = HfArg(default="ndcg@10", help="What the best weights are chosen by.")
    greater_is_better: bool | None = HfArg(default=True, help="Whether more of it is better.")
    eval_pool_size: int = HfArg(default=512, help="Items of the validation part that form its fixed set of candidates.")
    eval_full_vocabulary: bool = HfArg(default=False, help="Also log cross-entropy over all items.")
    logging_steps: float = HfArg(default=100, help="Steps between two logs of the training.")

    def __post_init__(self):
        refuse(self, TRAINING)  # before transformers speaks of settings that nobody gave
        super().__post_init__()
        if self.sampled_negatives is None and self.objective == "headless" and not self.log_q_correction:
            self.sampled_negatives = DRAWN
        decided = {"load_best_model_at_end": True, "metric_for_best_model": "ndcg@10", "greater_is_better": True}
        for name, value in decided.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r} but NDCG@10 chooses the weights here: leave it out."
                )
        if self.world_size > 1:
            raise ValueError(f"{self.world_size} processes were started, and items are ranked by one alone: start one.")


@dataclass
class RecommendArguments(ColumnArguments):
    """Whose best items are listed, and where what is found is written."""

    model_name_or_path: str | None = HfArg(default=None, help="Folder that `headless-trainer items` wrote.")
    history_file: list[str] | None = HfArg(
        default=None, help="Users and what they had, in the formats of --train_file of `headless-trainer items`."
    )
    output_file: str | None = HfArg(
        default=None, help="Where the best items are written, a line of JSON for each user."
    )
    top_k: int = HfArg(default=10, help="Items for each user.")
    tau: float | None = HfArg(
        default=None, help="Weight of log q: less for rarer items, more for popular ones. That of the model by default."
    )
    keep_seen: bool = HfArg(default=False, help="List items that the user had before too.")
    batch_size: int = HfArg(default=256, help="Users scored at once.")
    vectors_dir: str | None = HfArg(
        default=None,
        help="Where vectors of all items, and of the users of history_file, are written as .npy and .safetensors.",
    )

    def __post_init__(self):
        if not self.model_name_or_path:
            raise ValueError("model_name_or_path is not given: name a folder that `headless-trainer items` wrote.")
        if not (self.output_file or self.vectors_dir):
            raise ValueError("Neither output_file nor vectors_dir is given: name what is to be written.")
        super().__post_init__()
        refuse(self, (NO_LIST, NO_USERS))
        if self.tau is not None and not math.isfinite(self.tau):
            raise ValueError(f"tau must be finite, got {self.tau}.")
        if self.output_file and Path(self.output_file).suffix in OTHER_FORMATS:
            raise ValueError(
                f"output_file is {self.output_file!r} but a line of JSON is written for each user: name a .jsonl file."
            )
        if self.output_file and not self.history_file:
            raise ValueError(
                f"output_file is {self.output_file!r} but history_file is not given: name the users with --history_file."
            )
        for name in ("top_k", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
