"""Score causal language models without training, by the LM Evaluation Harness, and compare two of them.

    headless-trainer lm-eval --model_name_or_path runs/decoder-lm --tasks paper --output_dir runs/zero-shot
    headless-trainer lm-eval --model_name_or_path runs/decoder-lm --data_files lambada_openai=docs.jsonl --output_dir runs/local
    headless-trainer lm-eval --compare runs/decoder-lm runs/vanilla --tasks lambada_openai arc_easy --output_dir runs/zero-shot
    headless-trainer lm-eval --compare runs/zero-shot/runs__decoder-lm runs/zero-shot/runs__vanilla

A task takes its documents from the Hub, or from a local file given with --data_files; its prompt and its metrics are the
harness's either way. Results are written task by task in --output_dir: results.md, and a folder for each model. What is there
already is not scored again.
"""

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformers.hf_argparser import HfArg

from ..runtime.signals import ended_by_signals

logger = logging.getLogger("headless_trainer")


@dataclass
class ZeroShotArguments:
    """Which models are scored, on which tasks, and where the results go."""

    model_name_or_path: list[str] | None = HfArg(
        default=None, help="Causal language models to score (Hub names or folders)."
    )
    tasks: list[str] = HfArg(
        default_factory=lambda: ["lambada_openai"],
        help="Tasks, groups or tags of the harness, or 'paper' for the paper's list and LAMBADA, with the paper's "
        "accuracy for QASPER and fewer stereotypes as better.",
    )
    output_dir: str | None = HfArg(
        default=None, help="Folder of the results. Needed unless two folders of results are compared."
    )
    compare: list[str] | None = HfArg(
        default=None, help="Two models, scored now or earlier, or two folders of results: is one better than the other?"
    )
    significance: Literal["two_sided", "paper"] = HfArg(
        default="two_sided",
        help="The t-tests of --compare. paper: one-tailed, for the model with the better score, as in the paper's table "
        "4; of equal models that finds one better in a tenth of the tasks, not a twentieth.",
    )
    data_files: list[str] | None = HfArg(
        default=None,
        help="task=file items: local .jsonl, .json or .parquet documents in the place of a task's dataset.",
    )
    include_path: str | None = HfArg(
        default=None, help="Folder with task definitions of your own, in the harness's YAML."
    )
    num_fewshot: int | None = HfArg(default=None, help="Solved examples in each prompt. The task's own by default.")
    limit: float | None = HfArg(
        default=None, help="Score this many documents of each task, or this share if below 1. For trials."
    )
    batch_size: str = HfArg(
        default="auto",
        help="Inputs in a batch. auto: found by trying on an accelerator, from the free memory on a CPU.",
    )
    device: str | None = HfArg(default=None, help="Such as cuda:1. The accelerator if there is one by default.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = HfArg(
        default="auto", help="Precision of the weights. auto: as they were saved."
    )
    max_length: int | None = HfArg(default=None, help="Longest input in tokens. The model's own by default.")
    tokenizer_name: str | None = HfArg(default=None, help="Tokenizer. That of each model by default.")
    seed: int | None = HfArg(
        default=None, help="Seed of few-shot examples and shuffles. Those of the harness by default."
    )
    bootstrap_iters: int = HfArg(
        default=100_000, help="Resamples behind standard errors without a formula, such as perplexity's."
    )

    def __post_init__(self):
        if not self.model_name_or_path and not self.compare:
            raise ValueError("model_name_or_path is not given: name the language models to score, or two to --compare.")
        if self.compare and len(self.compare) != 2:
            raise ValueError(
                f"compare takes two models or folders of results, got {len(self.compare)}: {self.compare}."
            )
        if self.compare and self.compare[0] == self.compare[1]:
            raise ValueError(f"compare names {self.compare[0]!r} twice: name two.")
        if self.limit is not None and not (0 < self.limit < 1 or self.limit >= 1 and self.limit.is_integer()):
            raise ValueError(f"limit must be a number of documents, or a share above 0 and below 1, got {self.limit}.")
        if self.batch_size != "auto" and not (self.batch_size.isdigit() and int(self.batch_size) > 0):
            raise ValueError(f"batch_size must be auto or a number above 0, got {self.batch_size!r}.")
        for name, least in (("num_fewshot", 0), ("max_length", 2), ("bootstrap_iters", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")


@ended_by_signals("To go on: the same command, which skips the tasks that are scored")
def main(argv: list[str] | None = None) -> None:
    from ..command_line import errors_in_one_line, parse_args, show_usage

    show_usage(__doc__, argv)
    with errors_in_one_line(ValueError, OSError):
        evaluate(*parse_args([ZeroShotArguments], argv))


def evaluate(args: ZeroShotArguments) -> None:
    try:
        import lm_eval  # noqa: F401
        import scipy  # noqa: F401
    except ImportError as error:
        raise OSError(f"{error}. Zero-shot scoring needs an extra: pip install 'headless_trainer[eval]'") from error
    from ..command_line import as_typed
    from ..runtime.checkpoints import write_whole
    from ..runtime.run_folder import start_logging
    from ..scoring.score_comparison import CONSOLE_WIDTH, find_results, score_tables

    start_logging()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    compared = {each: find_results(each) for each in args.compare or []}
    models = list(
        dict.fromkeys([*(args.model_name_or_path or []), *(each for each, found in compared.items() if not found)])
    )
    failures: list[str] = []
    if models:
        if args.output_dir is None:
            raise ValueError(f"output_dir is not given: name the folder for the results of {', '.join(models)}.")
        from ..scoring.zero_shot import folder_name, score_models

        check_device(args.device)
        try:
            failures = score_models(models, args)
        finally:  # an error, or Ctrl-C, leaves what was scored until then in the table
            if tables := score_tables(args.output_dir):
                write_whole(Path(args.output_dir, "results.md"), f"{tables}\n".encode())
        print(
            f"\n{score_tables(args.output_dir, CONSOLE_WIDTH)}\n\nin {args.output_dir}: results.md, and a folder for each model"
        )
        compared = {each: found or Path(args.output_dir, folder_name(each)) for each, found in compared.items()}
    if compared and not failures:
        show_comparison(list(compared.values()), args)
    if failures:
        problem = "Failed, all else is scored and written; the same command tries again:"
        sys.exit(as_typed("\n".join([problem, *failures])))


def check_device(device: str | None) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        ValueError: with what torch says of it.
    """
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"device {device!r} is none of this machine ({reason}). Name another, or leave it out."
        ) from error


def show_comparison(folders: list[Path], args: ZeroShotArguments) -> None:
    from ..runtime.checkpoints import write_whole
    from ..scoring.score_comparison import compare, comparison_table, short_names

    rows = compare(*folders, seed=args.seed or 0, test=args.significance)
    table = comparison_table(rows, short_names(args.compare))
    print(f"\n{table}")
    if args.output_dir:
        write_whole(Path(args.output_dir, "comparison.md"), f"{table}\n".encode())
        write_whole(Path(args.output_dir, "comparison.json"), (json.dumps(rows, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
