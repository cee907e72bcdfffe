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

import itertools
import math
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import shared
from recipe import curve_of, reaching
from vocabulary_size import CPU_FINE_TUNING, of_tasks

from headless_trainer.fine_tuning.results import read_runs
from headless_trainer.presentation.tables import markdown

EXACT = "vanilla"
OBJECTIVES = (EXACT, "sampled_softmax", "headless")


def main() -> None:
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
    for each in args.objectives:  # before the bases are pretrained
        if each.partition(" with ")[0] not in OBJECTIVES:
            parser.error(
                f"--objectives: {each!r} is none of {OBJECTIVES}, alone or 'with' further flags."
            )
    args.settings |= {"model_type": args.model_type} if args.model_type else {}
    args.settings |= {"tie_word_embeddings": "false"} if args.untied else {}
    shared.prepare(args, also=args.new_files)
    bases = {seed: args.output_dir / f"base_{seed}" for seed in args.seeds}
    old = {"train_file": args.settings["train_file"]}
    shared.mapped(
        args,
        lambda seed: run(args, bases[seed], seed, EXACT, args.base_rate, args.base_steps, **old),
        bases,
    )
    rows = []
    for new in args.new_files:
        grid = [
            (objective, rate, args.max_steps)
            for objective, rate in itertools.product(args.objectives, args.rates)
        ]
        found = results(args, new, bases, grid)
        # The best last, which stays.
        ordered = sorted(found, key=lambda row: -statistics.mean(row["new"]))
        best = {each["objective"]: each for each in ordered}
        for row in best.values():
            row["reached"] = EXACT in best and reaching(
                as_recipe(args, row, bases), as_recipe(args, best[EXACT], bases)
            )
            row["scores"] = fine_tuned(args, row, bases)
        steps = {}
        if EXACT in best and not args.equal_tokens_only:
            pace = {each: sum(row["seconds"]) for each, row in best.items()}
            timed = [each for each in best if each in OBJECTIVES[1:]]
            steps = {each: round(args.max_steps * pace[EXACT] / pace[each]) for each in timed}
        rows += found + results(
            args, new, bases, [(each, best[each]["rate"], steps[each]) for each in steps]
        )
    head = [
        "new texts",
        "objective",
        "rate",
        "steps",
        "perplexity of the new texts",
        "of the old ones",
        "seconds",
    ]
    names = next((list(row["scores"]) for row in rows if row.get("scores")), [])
    cells = []
    for row in rows:
        facts = [row["texts"], row["objective"], f"{row['rate']:g}", row["steps"]]
        facts += [shared.spread(row[name], 1) for name in ("new", "old", "seconds")]
        facts.append(f"{row['reached'][1]:.0%}" if row.get("reached") else "")
        cells.append(
            facts
            + [shared.spread(row["scores"][name], 1) if row.get("scores") else "" for name in names]
        )
    head += ["exact softmax's end after", *names]
    table = [
        markdown(head, cells),
        "",
        f"Mean over {len(args.seeds)} bases, with its standard error in brackets.",
    ]
    shared.write_results(args.results_dir or args.output_dir, rows, table, runs=bases.values())


def folder_of(args, row: dict, seed: int) -> Path:
    """Return the folder of one seed's run for a table row."""
    name = f"{row['objective']}_{row['rate']:g}_{row['steps']}_{seed}".replace(" ", "_")
    return args.output_dir / row["texts"].partition(".")[0] / name


def as_recipe(args, row: dict, bases: dict[int, Path]) -> dict:
    """Return a table row in the form that `reaching` takes."""
    curves = {seed: curve_of(folder_of(args, row, seed)) for seed in bases}
    ends = {
        name: statistics.mean(curve[-1][name] for curve in curves.values())
        for name in ("tokens_seen", "seconds")
    }
    return {
        "perplexity": row["new"],
        "curves": curves,
        "tokens": ends["tokens_seen"],
        "seconds": ends["seconds"],
    }


def fine_tuned(args, row: dict, bases: dict[int, Path]) -> dict[str, list[float]]:
    """Return the scores x 100 of each base's run for a row on ``--tasks``; fine-tune where that
    was not done before.
    """
    found: dict[str, list[float]] = {}
    for seed in bases if args.tasks else ():
        folder = folder_of(args, row, seed)
        flags = [
            "--model_name_or_path",
            str(folder),
            "--output_dir",
            str(folder / "tasks"),
            "--tasks",
            *args.tasks,
        ]
        flags += ["--seeds", str(seed), *CPU_FINE_TUNING, *shlex.split(args.glue_flags)]
        # Skips what is finished.
        subprocess.run([sys.executable, "run_glue.py", *flags], check=True)
        for name, score in of_tasks(read_runs(folder / "tasks")).items():
            found.setdefault(name, []).append(score)
    return found


def results(
    args, new: Path, bases: dict[int, Path], settings: list[tuple[str, float, int]]
) -> list[dict]:
    """Train with each objective, rate and number of steps, and return a row for each: the results
    of each seed.
    """
    runs = list(itertools.product(settings, bases))

    def one(setting: tuple[tuple[str, float, int], int]) -> dict[str, float]:
        (objective, rate, steps), seed = setting
        folder = folder_of(
            args, {"texts": new.name, "objective": objective, "rate": rate, "steps": steps}, seed
        )
        more = {
            "train_file": new,
            "eval_old_file": args.settings["train_file"],
            "model_name_or_path": bases[seed],
        }
        found = run(args, folder, seed, objective, rate, steps, **more)
        if found is None:
            return {"new": math.inf, "old": math.inf, "seconds": math.nan}
        perplexities = {
            name: math.exp(found[f"eval_{key}cross_entropy"])
            for name, key in (("new", ""), ("old", "old_"))
        }
        return perplexities | {"seconds": shared.held_out_points(folder)[-1]["seconds"]}

    found = dict(zip(runs, shared.mapped(args, one, runs), strict=True))
    return [
        {"texts": new.name, "objective": objective, "rate": rate, "steps": steps}
        | {
            name: [found[(objective, rate, steps), seed][name] for seed in bases]
            for name in ("new", "old", "seconds")
        }
        for objective, rate, steps in settings
    ]


def run(
    args, folder: Path, seed: int, objective: str, rate: float, steps: int, **more
) -> dict | None:
    """Train unless that was done before, and return the results at the end; None if the run
    diverged.
    """
    objective, _, own_flags = objective.partition(" with ")
    flags = (
        args.settings
        | {
            "task": args.task,
            "objective": objective,
            "output_dir": folder,
            "seed": seed,
            "max_steps": steps,
            "tokenizer_name": shared.tokenizer_of(args),
            "learning_rate": rate,
            "warmup_steps": 0.05,
            "eval_strategy": "steps",
            "per_device_train_batch_size": args.batch_size,
            "eval_steps": max(1, steps // 4),
            "disable_tqdm": "true",
        }
        | more
    )
    kept = (
        ("vocab_size", "model_type", "config_overrides")
        if "model_name_or_path" in more
        else ("vocab_size",)
    )
    flags = {name: value for name, value in flags.items() if name not in kept}
    command = [sys.executable, "run_pretrain.py", *shared.as_flags(flags)]
    command += shlex.split(own_flags)
    command += shlex.split(args.continued_flags) if "model_name_or_path" in more else []
    return shared.results_of(command, folder, "eval_results.json", args.jobs)


if __name__ == "__main__":
    main()
