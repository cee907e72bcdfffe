"""Arguments of `headless-trainer lm-eval`."""

from dataclasses import dataclass
from typing import Literal

from transformers.hf_argparser import HfArg

# `from __future__ import annotations` must stay out of this file: HfArgumentParser reads the annotations as types.


@dataclass
class ZeroShotArguments:
    """Models, tasks and results."""

    model_name_or_path: list[str] | None = HfArg(
        default=None, help="Causal language models to score (Hub names or folders)."
    )
    tasks: list[str] = HfArg(
        default_factory=lambda: ["lambada_openai"],
        help="Tasks, groups or tags of the harness, or 'paper' for the paper's list and LAMBADA, with the paper's "
        "accuracy for QASPER and fewer stereotypes as better.",
    )
    output_dir: str | None = HfArg(
        default=None, help="Folder of the results. Required unless --compare names two folders of results."
    )
    compare: list[str] | None = HfArg(
        default=None,
        help="Test the difference between two models, scored now or earlier, or between two folders of results.",
    )
    significance: Literal["two_sided", "paper"] = HfArg(
        default="two_sided",
        help="The t-test of --compare. two_sided: paired by document. paper: one-tailed for the better score, on means and "
        "standard errors as in the paper's table 4; it calls one of two equal models better in a tenth of the tasks.",
    )
    data_files: list[str] | None = HfArg(
        default=None,
        help="task=file pairs: local .jsonl, .json or .parquet documents that replace a task's dataset.",
    )
    include_path: str | None = HfArg(
        default=None, help="Folder with task definitions of your own, in the harness's YAML."
    )
    num_fewshot: int | None = HfArg(default=None, help="Solved examples in each prompt. The task's own by default.")
    limit: float | None = HfArg(
        default=None, help="Score this many documents of each task, or this share if below 1; for trial runs."
    )
    batch_size: str = HfArg(
        default="auto",
        help="Inputs in a batch. auto: the largest that fits an accelerator, 8 on a CPU.",
    )
    device: str | None = HfArg(default=None, help="For example cuda:1. Default: the accelerator, if there is one.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = HfArg(
        default="auto", help="Precision of the weights. auto: as they were saved."
    )
    max_length: int | None = HfArg(default=None, help="Longest input in tokens. The model's own by default.")
    tokenizer_name: str | None = HfArg(default=None, help="Tokenizer. Each model's own by default.")
    seed: int | None = HfArg(default=None, help="Seed of few-shot examples and shuffles. The harness's own by default.")
    bootstrap_iters: int = HfArg(
        default=100_000, help="Bootstrap resamples for standard errors that have no formula, such as perplexity's."
    )

    def __post_init__(self):
        if not self.model_name_or_path and not self.compare:
            raise ValueError("model_name_or_path is not given: name the language models to score, or two to --compare.")
        pair = self.compare is None or len({*self.compare}) == len(self.compare) == 2
        share = self.limit is None or 0 < self.limit < 1 or self.limit >= 1 and self.limit.is_integer()
        batch = self.batch_size == "auto" or self.batch_size.isdigit() and int(self.batch_size) > 0
        for name, is_valid, wanted in (
            ("compare", pair, "two different models or folders of results"),
            ("limit", share, "a number of documents, or a share above 0 and below 1"),
            ("batch_size", batch, "auto or a number above 0"),
            ("num_fewshot", (self.num_fewshot or 0) >= 0, "at least 0"),
            ("max_length", self.max_length is None or self.max_length >= 2, "at least 2"),
        ):
            if not is_valid:
                raise ValueError(f"{name} must be {wanted}, got {getattr(self, name)!r}.")
