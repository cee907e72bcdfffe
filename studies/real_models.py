#!/usr/bin/env python
"""Continue a real decoder on new texts: exact softmax beside sampled softmax, and what else is
named.

    python studies/real_models_folders.py models gemma
    python studies/real_models.py --model models/gemma-3-270m --new_files fr.txt.gz \\
        --old_files en_wikipedia.txt.gz --output_dir runs/gemma --rates 3e-5 1e-4 3e-4

Each of ``--objectives`` trains at each of ``--rates`` for ``--max_steps``. The table has perplexity
and accuracy on held-out new and old texts before and after, seconds of training steps, and peak
memory. An objective is ``vanilla`` (the exact softmax), ``sampled_softmax`` or ``headless``, then
perhaps an adapter of peft, then perhaps flags of run_pretrain.py:

    'sampled_softmax with --sparse_embedding_updates'
    'vanilla + LoRA 16'
    'sampled_softmax + LoRA 16 with --exact_every 16'

With ``--chat`` the new files hold conversations, of which only answers are learned (see
real_models_training.py). With ``--equal_time`` each objective, at its best rate, also trains for as
many steps as take the time of the exact softmax: only on a machine that nothing else uses. On
another, ``--shared_machine`` leaves out the seconds. With ``--lm_eval_files`` the LM Evaluation
Harness scores the model before and after, at each objective's best rate; it does not score adapters
and models without their head.

Finished runs are not repeated; interrupted ones resume.
"""

import argparse
import itertools
import math
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import shared

from headless_trainer.presentation.tables import markdown
from headless_trainer.reporting.curves import curves
from headless_trainer.scoring.score_store import folder_name, read_results

EXACT = "vanilla"
OBJECTIVES = (EXACT, "sampled_softmax", "headless")
BEFORE = "before"
# What a run is measured by, and the heads of its columns.
FIGURES = {
    "new": "perplexity of the new texts",
    "new_accuracy": "accuracy (%)",
    "old": "of the old ones",
    "old_accuracy": "accuracy (%)",
    "unseen_mass": "on tokens the new texts lack (%)",
    "seconds": "seconds of steps",
    "memory": "peak memory (GiB)",
}


@dataclass(frozen=True)
class Variant:
    """A way to continue the model.

    Attributes:
        label: as on the command line.
        objective: of run_pretrain.py.
        lora_rank: rank of an adapter; None to train the model itself.
        flags: further flags of run_pretrain.py.
    """

    label: str
    objective: str
    lora_rank: int | None
    flags: tuple[str, ...]

    @property
    def keeps_whole_model(self) -> bool:
        """Whether a run leaves a language model that loads without anything else."""
        return self.objective != "headless" and self.lora_rank is None


@dataclass(frozen=True)
class Run:
    """A variant at one rate, with one length and one seed."""

    variant: Variant
    rate: float
    steps: int
    seed: int


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    before = figures_before(args)
    rows = rows_of(args, itertools.product(args.variants, args.rates, [args.max_steps]))
    best = best_rows(rows)
    if args.equal_time:
        rows += rows_of(args, settings_of_equal_time(args, best))
    scores = zero_shot_scores(args, best)
    if before is not None:
        before["scores"] = scores.get(BEFORE, {})
    for row in rows:
        row["scores"] = scores.get(scored_name(row), {})
    results = {BEFORE: before, "runs": [recorded(row) for row in rows]}
    folders = [folder_of(args, run) for row in rows for run in runs_of(args, row)]
    shared.write_results(
        args.results_dir or args.output_dir, results, table_of(args, results), runs=folders
    )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments, with ``variants``: the objectives in parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a decoder: a folder, or a name on the Hub")
    parser.add_argument("--new_files", nargs="+", required=True, help="texts to train on")
    parser.add_argument("--old_files", nargs="+", required=True, help="texts to measure forgetting")
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument("--chat", action="store_true", help="the new files hold conversations")
    parser.add_argument("--objectives", nargs="+", default=[EXACT, "sampled_softmax"])
    parser.add_argument("--rates", nargs="+", type=float, default=[3e-5, 1e-4, 3e-4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--max_steps", type=int, default=300)
    parser.add_argument("--batch_size", type=int, default=8, help="rows of a step")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument(
        "--max_eval_samples", type=int, default=200, help="most rows of each held-out set"
    )
    parser.add_argument("--flags", default="", help="of all runs: --flags='--bf16 auto'")
    parser.add_argument("--equal_time", action="store_true")
    parser.add_argument(
        "--shared_machine",
        action="store_true",
        help="leave out seconds, which other programs have disturbed",
    )
    parser.add_argument(
        "--finished_only",
        action="store_true",
        help="train nothing, and leave out what has not finished",
    )
    parser.add_argument(
        "--lm_eval_files",
        nargs="+",
        default=[],
        help="task=file pairs, as in run_lm_eval.py: lambada_openai=lambada.jsonl",
    )
    parser.add_argument("--lm_eval_rows", type=int, default=500, help="documents of each task")
    parser.add_argument("--jobs", type=int, default=1, help="concurrent runs")
    shared.results_argument(parser)
    args = parser.parse_args(argv)
    try:
        args.variants = [parse_variant(label) for label in args.objectives]
    except ValueError as error:
        parser.error(str(error))
    if args.equal_time and args.shared_machine:
        parser.error("--equal_time needs seconds, which --shared_machine leaves out.")
    if args.equal_time and EXACT not in args.objectives:
        parser.error(
            f"--equal_time needs the time of the exact softmax: add {EXACT!r} to --objectives."
        )
    return args


def parse_variant(label: str) -> Variant:
    """Take ``OBJECTIVE [+ LoRA RANK] [with FLAGS]`` apart.

    Raises:
        ValueError: if it is anything else, or an adapter of a headless model.
    """
    name, _, flags = label.partition(" with ")
    objective, _, rank = name.partition(" + LoRA ")
    if objective not in OBJECTIVES:
        raise ValueError(
            f"--objectives: {label!r} begins with none of {', '.join(OBJECTIVES)}, perhaps "
            "followed by '+ LoRA RANK' and by 'with FLAGS'."
        )
    lora_rank = None
    if name != objective:
        if not rank.isdecimal() or int(rank) == 0:
            raise ValueError(f"--objectives: {label!r} has no rank of 1 or more behind '+ LoRA'.")
        if objective == "headless":
            raise ValueError(
                f"--objectives: {label!r}: headless trains the embedding, which no adapter does."
            )
        lora_rank = int(rank)
    return Variant(label, objective, lora_rank, tuple(shlex.split(flags)))


# Training -------------------------------------------------------------------------------------


def run_before(args: argparse.Namespace) -> Run:
    """Return a run that measures the model as it is: one step at a rate of 0.

    It has the objective that also measures the probability of tokens that the new texts lack.
    """
    never_exact = ("--exact_every", "0", "--save_strategy", "no")
    variant = Variant(BEFORE, "sampled_softmax", None, never_exact)
    return Run(variant, rate=0.0, steps=1, seed=args.seeds[0])


def figures_before(args: argparse.Namespace) -> dict | None:
    """Return the `FIGURES` of the model as it is; None if they are not measured yet, nor to be."""
    run = run_before(args)
    if args.finished_only and not is_finished(args, run):
        return None
    # The one step that measures the model costs nothing that a user pays.
    return measured(args, run) | {"seconds": None, "memory": None}


def runs_of(args: argparse.Namespace, row: dict) -> list[Run]:
    """Return the runs of a table row, one for each seed."""
    return [Run(row["variant"], row["rate"], row["steps"], seed) for seed in args.seeds]


def folder_of(args: argparse.Namespace, run: Run) -> Path:
    """Return the folder of a run."""
    name = re.sub(r"[^\w.-]", "_", run.variant.label)
    return args.output_dir / f"{name}_{run.rate:g}_{run.steps}_{run.seed}"


def command_of(args: argparse.Namespace, run: Run) -> list[str]:
    """Return the command of a run, without the checkpoint to resume from."""
    settings = {
        "model_name_or_path": args.model,
        "task": "clm",
        "objective": run.variant.objective,
        "train_file": args.new_files,
        "eval_old_file": args.old_files,
        "output_dir": folder_of(args, run),
        "seed": run.seed,
        "max_seq_length": args.max_seq_length,
        "per_device_train_batch_size": args.batch_size,
        "max_steps": run.steps,
        "learning_rate": run.rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.05,
        "weight_decay": 0.01,
        "adam_beta2": 0.999,
        "max_eval_samples": args.max_eval_samples,
        "do_eval": "true",
        "logging_steps": max(1, run.steps // 20),
        "save_steps": 0.5,
        "save_total_limit": 1,
        "disable_tqdm": "true",
    }
    script = "run_pretrain.py"
    own_settings = {}
    if run.variant.lora_rank is not None:
        own_settings["lora_rank"] = run.variant.lora_rank
    if args.chat:
        own_settings["chat"] = "true"
    if own_settings:
        script = "studies/real_models_training.py"
    return [
        sys.executable,
        script,
        *shared.as_flags(settings | own_settings),
        *shlex.split(args.flags),
        *run.variant.flags,
    ]


def measured(args: argparse.Namespace, run: Run) -> dict[str, float | None]:
    """Return the `FIGURES` of a run at its end, and train it unless that was done before.

    A figure that its objective does not have is None; perplexities of a run that diverged are
    infinite.
    """
    folder = folder_of(args, run)
    results = shared.results_of(command_of(args, run), folder, "eval_results.json", args.jobs)
    if results is None:
        return dict.fromkeys(FIGURES) | {"new": math.inf, "old": math.inf}
    logged = curves(shared.log_history(folder))
    # Not every objective logs it.
    unseen_mass = results.get("eval_unseen_token_mass")
    if unseen_mass is not None:
        unseen_mass *= 100
    seconds = None
    if not args.shared_machine:
        seconds = float(logged["train_seconds"].max())
    return {
        "new": math.exp(results["eval_cross_entropy"]),
        "new_accuracy": 100 * results["eval_accuracy"],
        "old": math.exp(results["eval_old_cross_entropy"]),
        "old_accuracy": 100 * results["eval_old_accuracy"],
        "unseen_mass": unseen_mass,
        "seconds": seconds,
        "memory": float(logged["peak_memory_mib"].max()) / 1024,
    }


def is_finished(args: argparse.Namespace, run: Run) -> bool:
    """Whether a run has come to its end, or diverged before it."""
    folder = folder_of(args, run)
    return (folder / "eval_results.json").is_file() or (folder / "diverged").is_file()


def rows_of(args: argparse.Namespace, settings: Iterable[tuple[Variant, float, int]]) -> list[dict]:
    """Train each variant at its rate for its steps, and return a table row for each."""
    rows = [
        {"objective": variant.label, "rate": rate, "steps": steps, "variant": variant}
        for variant, rate, steps in settings
    ]
    if args.finished_only:
        rows = [row for row in rows if all(is_finished(args, run) for run in runs_of(args, row))]
    runs = [run for row in rows for run in runs_of(args, row)]
    figures_of_runs = shared.mapped(args, lambda run: measured(args, run), runs)
    figures_of = dict(zip(runs, figures_of_runs, strict=True))
    for row in rows:
        of_seeds = [figures_of[run] for run in runs_of(args, row)]
        for name in FIGURES:
            row[name] = [figures[name] for figures in of_seeds]
    return rows


def best_rows(rows: list[dict]) -> dict[str, dict]:
    """Return for each objective its row with the lowest mean perplexity of the new texts."""
    best: dict[str, dict] = {}
    for row in rows:
        leader = best.get(row["objective"])
        if leader is None or statistics.mean(row["new"]) < statistics.mean(leader["new"]):
            best[row["objective"]] = row
    return best


def settings_of_equal_time(
    args: argparse.Namespace, best: dict[str, dict]
) -> list[tuple[Variant, float, int]]:
    """Return for each objective but the exact softmax as many steps as take the time
    of that one.
    """
    time = {
        label: statistics.mean(row["seconds"])
        for label, row in best.items()
        # The others diverged before their end.
        if math.isfinite(statistics.mean(row["new"]))
    }
    if EXACT not in time:
        return []
    return [
        (best[label]["variant"], best[label]["rate"], round(args.max_steps * time[EXACT] / seconds))
        for label, seconds in time.items()
        if label != EXACT
    ]


# Zero-shot scores -----------------------------------------------------------------------------


def scored_name(row: dict) -> tuple[str, float, int]:
    """Return what tells the models of table rows apart."""
    return row["objective"], row["rate"], row["steps"]


def zero_shot_scores(args: argparse.Namespace, best: dict[str, dict]) -> dict:
    """Score the model before, and after each objective at its best rate with the first seed.

    Returns:
        For ``BEFORE`` and each `scored_name` the accuracies in percent, by task. Empty without
        ``--lm_eval_files``.
    """
    if not args.lm_eval_files:
        return {}
    models = {BEFORE: args.model}
    for row in best.values():
        if row["variant"].keeps_whole_model and math.isfinite(row["new"][0]):
            models[scored_name(row)] = str(folder_of(args, runs_of(args, row)[0]))
    tasks = [pair.partition("=")[0] for pair in args.lm_eval_files]
    output = args.output_dir / "zero_shot"
    command = [sys.executable, "run_lm_eval.py", "--tasks", *tasks]
    command += ["--data_files", *args.lm_eval_files, "--limit", str(args.lm_eval_rows)]
    command += ["--output_dir", str(output), "--model_name_or_path", *models.values()]
    # Answers that a run before got are not asked for again.
    subprocess.run(command, check=True)
    scores = {}
    for name, model in models.items():
        results = read_results(output / folder_name(model))["results"]
        scores[name] = {task: 100 * results[task]["acc,none"] for task in tasks}
    return scores


# The table ------------------------------------------------------------------------------------


def recorded(row: dict) -> dict:
    """Return a table row as it is recorded, without the folders of this machine."""
    kept = {name: value for name, value in row.items() if name != "variant"}
    kept["objective"] = shared.without_folders(row["objective"])
    return kept


def table_of(args: argparse.Namespace, results: dict) -> list[str]:
    """Return the table, with a line on what its numbers are."""
    before = results[BEFORE]
    tasks = list(dict.fromkeys(task for row in results["runs"] for task in row["scores"]))
    head = ["objective", "rate", "steps", *FIGURES.values(), *tasks]
    cells = []
    if before is not None:
        figures = figure_cells({name: [before[name]] for name in FIGURES})
        cells.append([BEFORE, "", "", *figures, *score_cells(before["scores"], tasks)])
    for row in results["runs"]:
        name = [row["objective"], f"{row['rate']:g}", f"{row['steps']}"]
        cells.append([*name, *figure_cells(row), *score_cells(row["scores"], tasks)])
    tokens = args.batch_size * args.max_seq_length
    note = (
        f"{len(args.seeds)} seed(s); standard errors in brackets. A step has {tokens:,} tokens; "
        f"each held-out set has up to {args.max_eval_samples} rows of {args.max_seq_length} tokens."
    )
    return [markdown(head, cells), "", note]


def figure_cells(figures: dict[str, list[float | None]]) -> list[str]:
    """Return the cells of the ``FIGURES``, empty where a run lacks one."""
    cells = []
    for name in FIGURES:
        values = figures[name]
        if None in values:
            cells.append("")
        elif "accuracy" in name:
            cells.append(shared.spread(values, 2))
        elif name == "seconds":
            cells.append(shared.spread(values, 0))
        else:
            cells.append(shared.spread(values, 1))
    return cells


def score_cells(scores: dict[str, float], tasks: list[str]) -> list[str]:
    """Return the cells of zero-shot scores, empty where a model was not scored."""
    return [f"{scores[task]:.1f}" if task in scores else "" for task in tasks]


if __name__ == "__main__":
    main()
