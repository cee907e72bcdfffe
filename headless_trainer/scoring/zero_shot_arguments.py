"""Arguments of `headless-trainer lm-eval`."""

import re
from dataclasses import dataclass
from typing import Literal

from transformers.hf_argparser import HfArg

from ..refusals import outside, refuse
from ..settings import AT_LEAST_ONE, NOT_NEGATIVE

# `from __future__ import annotations` must stay out of this file: HfArgumentParser reads the
# annotations as types.

DEFAULT_TASKS = ("lambada_openai",)
VALUES = (
    *outside("num_fewshot bootstrap_iters", *NOT_NEGATIVE),
    *outside("max_length", *AT_LEAST_ONE),
    *outside(
        "batch_size",
        "be a number above 0, or auto, or auto:N, which finds it N times",
        lambda size: re.fullmatch(r"auto(:[1-9]\d*)?|[1-9]\d*", size),
    ),
)


@dataclass
class ZeroShotArguments:
    """Models, tasks and results."""

    model_name_or_path: list[str] | None = HfArg(
        default=None, help="Causal language models to score."
    )
    tasks: list[str] | None = HfArg(
        default=None,
        help="Tasks, groups or tags of the harness, or 'paper'. That is its list and LAMBADA, with "
        "its accuracy for QASPER. Default: lambada_openai, and for --compare all that both models "
        "have results of.",
    )
    output_dir: str | None = HfArg(
        default=None, help="Folder of the results. Required unless --compare names two."
    )
    compare: list[str] | None = HfArg(
        default=None,
        help="Test the difference between two models or folders of results. Models are scored now "
        "or were earlier.",
    )
    data_files: list[str] | None = HfArg(
        default=None,
        help="task=file pairs: local .jsonl, .json or .parquet documents that replace a task's "
        "dataset.",
    )
    include_path: str | None = HfArg(
        default=None, help="Folder with your own task definitions, in the harness's YAML."
    )
    num_fewshot: int | None = HfArg(
        default=None, help="Solved examples in each prompt. The task's own by default."
    )
    limit: float | None = HfArg(
        default=None, help="Documents to score per task: a number, or a share below 1."
    )
    batch_size: str = HfArg(
        default="auto", help="Inputs in a batch. auto: what fits an accelerator, or 8 on a CPU."
    )
    device: str | None = HfArg(
        default=None, help="For example cuda:1. Default: the accelerator, if there is one."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = HfArg(
        default="auto", help="Precision of the weights. auto: as they were saved."
    )
    max_length: int | None = HfArg(
        default=None, help="Longest input in tokens. The model's own by default."
    )
    bootstrap_iters: int = HfArg(
        default=100_000, help="Bootstrap resamples for errors without a formula."
    )

    def __post_init__(self):
        if not self.model_name_or_path and not self.compare:
            raise ValueError(
                "model_name_or_path is not given: name the language models to score, or two to "
                "--compare."
            )
        if self.compare is not None:
            are_two = len(self.compare) == 2
            if not are_two or self.compare[0] == self.compare[1]:
                raise ValueError(
                    f"compare must be two different models or folders of results, got "
                    f"{self.compare!r}."
                )
        if self.limit is not None and not _is_limit(self.limit):
            raise ValueError(
                f"limit must be a number of documents, or a share above 0 and below 1, got "
                f"{self.limit}."
            )
        refuse(self, VALUES)

    @property
    def scored_tasks(self) -> list[str]:
        """The names of the tasks that models are scored on."""
        return self.tasks or list(DEFAULT_TASKS)


def _is_limit(limit: float) -> bool:
    """Return whether a limit is a share below 1, or a whole number of documents."""
    return 0 < limit < 1 or (limit >= 1 and limit.is_integer())
