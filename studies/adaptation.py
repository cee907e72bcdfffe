#!/usr/bin/env python
"""A language model trained on with other texts: exact softmax, sampled softmax, and headless with its free head.

    python studies/adaptation.py --train_file old.txt.gz --new_files fr.txt.gz --output_dir runs/adaptation --jobs 2

For each seed a base is pretrained on ``--train_file`` with the exact softmax, and goes on from there with each objective at
each of ``--rates`` on each of ``--new_files``, for ``--max_steps``; the tokenizer has seen all of the texts. Perplexity of what
is held out of the new and of the old texts, and seconds of training steps. Then the other objectives at their best rate for as
many steps as take the time of the exact softmax. Runs that are finished are not repeated, those cut off go on.
"""

import itertools
import math
import sys
from pathlib import Path

import shared

from headless_trainer.tables import markdown

OBJECTIVES = ("vanilla", "sampled_softmax", "headless")
EXACT = OBJECTIVES[0]


def main() -> None:
    parser = shared.model_arguments(__doc__, recipes=False)
    parser.add_argument("--new_files", nargs="+", required=True, type=Path)
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 3e-3, 6e-3])
    parser.add_argument("--base_steps", type=int, default=2000)
    parser.add_argument("--base_rate", type=float, default=4e-3)
    parser.add_argument("--model_type", help="instead of that of the scale, at the same size")
    parser.add_argument("--untied", action="store_true", help="bases whose head has a matrix of its own")
    args = shared.at_scale(parser.parse_args(), max_steps=200, vocab_size=16_000)
    args.settings |= {"model_type": args.model_type} if args.model_type else {}
    args.settings |= {"tie_word_embeddings": "false"} if args.untied else {}
    shared.prepare(args, also=args.new_files)
    bases = {seed: args.output_dir / f"base_{seed}" for seed in args.seeds}
    old = {"train_file": args.settings["train_file"]}
    shared.mapped(args, lambda seed: run(args, bases[seed], seed, EXACT, args.base_rate, args.base_steps, **old), bases)
    rows = []
    for new in args.new_files:
        grid = [(objective, rate, args.max_steps) for objective, rate in itertools.product(OBJECTIVES, args.rates)]
        found = results(args, new, bases, grid)
        best = {each["objective"]: each for each in sorted(found, key=lambda row: -row["new"][0])}  # the last one stays
        pace = {each: sum(row["seconds"]) for each, row in best.items()}
        steps = {each: round(args.max_steps * pace[EXACT] / pace[each]) for each in OBJECTIVES[1:]}
        rows += found + results(args, new, bases, [(each, best[each]["rate"], steps[each]) for each in steps])
    head = ("new texts", "objective", "rate", "steps", "perplexity of the new texts", "of the old ones", "seconds")
    cells = [
        (row["texts"], row["objective"], f"{row['rate']:g}", row["steps"])
        + tuple(shared.spread(row[name], 1) for name in ("new", "old", "seconds"))
        for row in rows
    ]
    table = [markdown(head, cells), "", f"Mean over {len(args.seeds)} bases, in brackets its standard error."]
    shared.write_results(args.results_dir or args.output_dir, rows, table, runs=bases.values())


def results(args, new: Path, bases: dict[int, Path], settings: list[tuple[str, float, int]]) -> list[dict]:
    """A row for each objective, rate and number of steps: what each seed found."""
    runs = list(itertools.product(settings, bases))

    def one(setting: tuple[tuple[str, float, int], int]) -> dict[str, float]:
        (objective, rate, steps), seed = setting
        folder = args.output_dir / new.name.partition(".")[0] / f"{objective}_{rate:g}_{steps}_{seed}"
        more = {"train_file": new, "eval_old_file": args.settings["train_file"], "model_name_or_path": bases[seed]}
        found = run(args, folder, seed, objective, rate, steps, **more)
        if found is None:
            return {"new": math.inf, "old": math.inf, "seconds": math.nan}
        perplexities = {
            name: math.exp(found[f"eval_{key}cross_entropy"]) for name, key in (("new", ""), ("old", "old_"))
        }
        return perplexities | {"seconds": shared.held_out_points(folder)[-1]["seconds"]}

    found = dict(zip(runs, shared.mapped(args, one, runs), strict=True))
    return [
        {"texts": new.name, "objective": objective, "rate": rate, "steps": steps}
        | {name: [found[(objective, rate, steps), seed][name] for seed in bases] for name in ("new", "old", "seconds")}
        for objective, rate, steps in settings
    ]


def run(args, folder: Path, seed: int, objective: str, rate: float, steps: int, **more) -> dict | None:
    """What a training run found at its end; None where it diverged."""
    flags = args.settings | {
        "task": args.task, "objective": objective, "output_dir": folder, "seed": seed, "max_steps": steps,
        "tokenizer_name": shared.tokenizer_of(args), "learning_rate": rate, "warmup_steps": 0.05, "eval_strategy": "steps",
        "per_device_train_batch_size": args.batch_size, "eval_steps": max(1, steps // 4), "disable_tqdm": "true",
    } | more  # fmt: skip
    kept = ("vocab_size", "model_type", "config_overrides") if "model_name_or_path" in more else ("vocab_size",)
    flags = {name: value for name, value in flags.items() if name not in kept}
    command = [sys.executable, "run_pretrain.py", *shared.as_flags(flags)]
    return shared.results_of(command, folder, "eval_results.json", args.jobs)


if __name__ == "__main__":
    main()
