#!/usr/bin/env python
"""Continue a language model on other texts: exact softmax, sampled softmax, and headless with its
free head.

    python studies/adaptation.py --train_file old.txt.gz --new_files fr.txt.gz \\
        --output_dir runs/adaptation --jobs 2

For each seed, a base is pretrained on ``--train_file`` with the exact softmax and then continued
with each objective, at each of ``--rates``, on each of ``--new_files``, for ``--max_steps``; the
tokenizer is trained on all of the texts. The table has the perplexity on held-out new and old
texts, the seconds of training steps and, at each objective's best rate, the share of the exact
softmax's time after which it reaches the exact softmax's final perplexity; with ``--tasks`` also
scores of the models at their best rates, fine-tuned. Then the other objectives, at their best
rates, train for as many steps as take the time of the exact softmax. Finished runs are not
repeated; interrupted ones resume.
"""

import argparse
import itertools
import math
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import shared
from recipe import curve_of, reaching
from vocabulary_size import CPU_FINE_TUNING, scores_on_tasks

from headless_trainer.fine_tuning.results import read_runs
from headless_trainer.presentation.tables import markdown

EXACT = "vanilla"
OBJECTIVES = (EXACT, "sampled_softmax", "headless")
# Of each run: the perplexities on held-out new and old texts, and the seconds of training steps.
FIGURES = ("new", "old", "seconds")


class Setting(NamedTuple):
    """How a base is continued.

    Attributes:
        objective: as on the command line, perhaps with further flags.
        rate: learning rate.
        steps: optimizer steps.
    """

    objective: str
    rate: float
    steps: int


def main() -> None:
    args = parse()
    shared.prepare(args, also=args.new_files)
    bases = train_bases(args)
    rows = []
    for new_file in args.new_files:
        rows += rows_of_texts(args, new_file, bases)
    note = f"Mean over {len(args.seeds)} bases, with its standard error in brackets."
    table = [table_of(rows), "", note]
    shared.write_results(args.results_dir or args.output_dir, rows, table, runs=bases.values())


def parse() -> argparse.Namespace:
    """Return the arguments, with the scale's values for those not given."""
    parser = shared.model_arguments(__doc__, recipes=False)
    parser.add_argument("--new_files", nargs="+", required=True, type=Path)
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 3e-3, 6e-3])
    parser.add_argument("--base_steps", type=int, default=2000)
    parser.add_argument("--base_rate", type=float, default=4e-3)
    parser.add_argument(
        "--continued_flags", default="", help="of the continued runs: ...='--adam_beta2 0.999'"
    )
    parser.add_argument("--model_type", help="replaces the scale's model type, at the same size")
    parser.add_argument("--untied", action="store_true", help="pretrain bases with an untied head")
    parser.add_argument(
        "--objectives",
        nargs="+",
        default=OBJECTIVES,
        help="also with flags of run_pretrain.py: 'sampled_softmax with --sampled_negatives 0'",
    )
    parser.add_argument(
        "--equal_tokens_only", action="store_true", help="leave out the runs of equal time"
    )
    parser.add_argument(
        "--tasks", nargs="+", default=[], help="tasks for encoders, named as in run_glue.py"
    )
    parser.add_argument(
        "--glue_flags", default="", help="further flags of run_glue.py: --glue_flags='...'"
    )
    args = shared.at_scale(parser.parse_args(), max_steps=200, vocab_size=16_000)
    if not args.train_file:
        parser.error("--train_file is missing: name the files of the old texts at every --scale.")
    # Checked here, not hours later, when the bases are pretrained.
    for objective in args.objectives:
        if objective.partition(" with ")[0] not in OBJECTIVES:
            parser.error(
                f"--objectives: {objective!r} is none of {OBJECTIVES}, alone or 'with' further "
                "flags."
            )
    if args.model_type:
        if "config_name" in args.settings:
            parser.error(
                f"--model_type {args.model_type}: --scale {args.scale} names a whole configuration:"
                " leave --model_type out, or choose --scale cpu."
            )
        args.settings["model_type"] = args.model_type
    if args.untied:
        args.settings["tie_word_embeddings"] = "false"
    return args


def train_bases(args: argparse.Namespace) -> dict[int, Path]:
    """Pretrain a base for each seed on the old texts, and return their folders by seed."""
    bases = {seed: args.output_dir / f"base_{seed}" for seed in args.seeds}
    setting = Setting(EXACT, args.base_rate, args.base_steps)
    old_texts = {"train_file": args.settings["train_file"]}

    def train_base(seed: int) -> None:
        if run(args, bases[seed], seed, *setting, **old_texts) is None:
            raise SystemExit(
                f"The base in {bases[seed]} diverged with --base_rate {args.base_rate:g}: choose a "
                "smaller --base_rate, and another --output_dir."
            )

    shared.mapped(args, train_base, bases)
    return bases


def rows_of_texts(
    args: argparse.Namespace, new_file: Path, bases: dict[int, Path]
) -> list[dict[str, object]]:
    """Return the table rows for one file of new texts: the whole grid, then the runs of equal
    time.
    """
    grid = [
        Setting(objective, rate, args.max_steps)
        for objective, rate in itertools.product(args.objectives, args.rates)
    ]
    rows = continued(args, new_file, bases, grid)
    best = best_rows(rows)
    for row in best.values():
        row["reached"] = EXACT in best and reaching(
            as_recipe(args, row, bases), as_recipe(args, best[EXACT], bases)
        )
        row["scores"] = fine_tuned(args, row, bases)
    if args.equal_tokens_only:
        return rows
    return rows + continued(args, new_file, bases, settings_of_equal_time(args, best))


def best_rows(rows: list[dict]) -> dict[str, dict]:
    """Return for each objective its row with the lowest mean perplexity on the new texts; none for
    an objective of which a run diverged at each rate.
    """
    best = {}
    whole = [row for row in rows if math.isfinite(statistics.mean(row["new"]))]
    # From the worst to the best, so that an objective's best row replaces its other ones.
    for row in sorted(whole, key=lambda row: statistics.mean(row["new"]), reverse=True):
        best[row["objective"]] = row
    return best


def settings_of_equal_time(args: argparse.Namespace, best: dict[str, dict]) -> list[Setting]:
    """Return for each other objective its best rate with as many steps as take the time of the
    exact softmax, without further flags.
    """
    if EXACT not in best:
        return []
    seconds = {objective: sum(row["seconds"]) for objective, row in best.items()}
    return [
        Setting(objective, row["rate"], round(args.max_steps * seconds[EXACT] / seconds[objective]))
        for objective, row in best.items()
        if objective in OBJECTIVES[1:]
    ]


def table_of(rows: list[dict]) -> str:
    """Return the table; only the rows of best rates have scores and a share of time."""
    head = [
        "new texts",
        "objective",
        "rate",
        "steps",
        "perplexity of the new texts",
        "of the old ones",
        "seconds",
        "exact softmax's end after",
    ]
    tasks = next((list(row["scores"]) for row in rows if row.get("scores")), [])
    cells = []
    for row in rows:
        facts = [row["texts"], row["objective"], f"{row['rate']:g}", row["steps"]]
        figures = [shared.spread(row[name], 1) for name in FIGURES]
        share_of_time = ""
        if row.get("reached"):
            share_of_time = f"{row['reached'][1]:.0%}"
        scores = [""] * len(tasks)
        if row.get("scores"):
            scores = [shared.spread(row["scores"][task], 1) for task in tasks]
        cells.append([*facts, *figures, share_of_time, *scores])
    return markdown([*head, *tasks], cells)


def folder_of(args, row: dict, seed: int) -> Path:
    """Return the folder of one seed's run for a table row."""
    name = f"{row['objective']}_{row['rate']:g}_{row['steps']}_{seed}".replace(" ", "_")
    return args.output_dir / row["texts"].partition(".")[0] / name


def as_recipe(args, row: dict, bases: dict[int, Path]) -> dict:
    """Return a table row in the form that `reaching` takes."""
    curves = {seed: curve_of(folder_of(args, row, seed)) for seed in bases}
    ends = [curve[-1] for curve in curves.values()]
    return {
        "perplexity": row["new"],
        "curves": curves,
        "tokens": statistics.mean(end["tokens_seen"] for end in ends),
        "seconds": statistics.mean(end["seconds"] for end in ends),
    }


def fine_tuned(args, row: dict, bases: dict[int, Path]) -> dict[str, list[float]]:
    """Return the scores x 100 of each base's run for a row on ``--tasks``; fine-tune where that
    was not done before.
    """
    if not args.tasks:
        return {}
    scores: dict[str, list[float]] = {}
    for seed in bases:
        folder = folder_of(args, row, seed)
        flags = ["--model_name_or_path", str(folder), "--output_dir", str(folder / "tasks")]
        flags += ["--tasks", *args.tasks]
        flags += ["--seeds", str(seed), *CPU_FINE_TUNING, *shlex.split(args.glue_flags)]
        # Skips what is finished.
        subprocess.run([sys.executable, "run_glue.py", *flags], check=True)
        for task, score in scores_on_tasks(read_runs(folder / "tasks")).items():
            scores.setdefault(task, []).append(score)
    return scores


def continued(
    args, new_file: Path, bases: dict[int, Path], settings: list[Setting]
) -> list[dict[str, object]]:
    """Continue all bases with each setting, and return a row for each setting, with the
    ``FIGURES`` of each seed.
    """
    rows = [{"texts": new_file.name, **setting._asdict()} for setting in settings]
    runs = list(itertools.product(range(len(rows)), bases))

    def figures_of_run(row_and_seed: tuple[int, int]) -> dict[str, float]:
        number, seed = row_and_seed
        folder = folder_of(args, rows[number], seed)
        results = run(
            args,
            folder,
            seed,
            *settings[number],
            train_file=new_file,
            eval_old_file=args.settings["train_file"],
            model_name_or_path=bases[seed],
        )
        if results is None:
            return {"new": math.inf, "old": math.inf, "seconds": math.nan}
        return {
            "new": math.exp(results["eval_cross_entropy"]),
            "old": math.exp(results["eval_old_cross_entropy"]),
            "seconds": shared.held_out_points(folder)[-1]["seconds"],
        }

    figures = dict(zip(runs, shared.mapped(args, figures_of_run, runs), strict=True))
    for number, row in enumerate(rows):
        for name in FIGURES:
            row[name] = [figures[number, seed][name] for seed in bases]
    return rows


def run(
    args, folder: Path, seed: int, objective: str, rate: float, steps: int, **further_settings
) -> dict | None:
    """Train unless that was done before, and return the results at the end; None if the run
    diverged.

    Args:
        args: the study's arguments.
        folder: the run's output folder.
        seed: seed of the base.
        objective: with perhaps further flags.
        rate: learning rate.
        steps: optimizer steps.
        further_settings: flags of run_pretrain.py; ``model_name_or_path`` continues that model.
    """
    objective, _, objective_flags = objective.partition(" with ")
    settings = args.settings | {
        "task": args.task,
        "objective": objective,
        "output_dir": folder,
        "seed": seed,
        "max_steps": steps,
        "tokenizer_name": shared.tokenizer_of(args),
        "learning_rate": rate,
        "lr_scheduler_type": args.schedule,
        "warmup_steps": 0.05,
        "eval_strategy": "steps",
        "per_device_train_batch_size": args.batch_size,
        "eval_steps": max(1, steps // 4),
        "disable_tqdm": "true",
    }
    settings |= further_settings
    is_continued = "model_name_or_path" in further_settings
    # The tokenizer is trained already, and a continued model exists already.
    settled = ["vocab_size", "train_tokenizer", "tokenizer_type"]
    if is_continued:
        settled += ["model_type", "config_name", "config_overrides"]
    settings = {name: value for name, value in settings.items() if name not in settled}
    launcher = shlex.split(args.launcher) or [sys.executable]
    command = [*launcher, "run_pretrain.py", *shared.as_flags(settings)]
    command += shlex.split(objective_flags)
    if is_continued:
        command += shlex.split(args.continued_flags)
    return shared.results_of(command, folder, "eval_results.json", args.jobs)


if __name__ == "__main__":
    main()
