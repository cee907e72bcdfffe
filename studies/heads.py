#!/usr/bin/env python
"""Compare the heads that a headless decoder can have, along pretraining and fine-tuning: figure 5
of arXiv 2309.08351.

    python studies/heads.py --train_file corpus.txt.gz --output_dir runs/heads \\
        --lambada_file lambada.jsonl

Pretrain --headless and each --vanilla with the same rows, schedule and rate, and compare at each
of --checkpoints:

- E^T alone, which the paper calls headless;
- the free head, E^T + log q;
- the head fine-tuned with the trunk, from E^T, as in section 4.2 of the paper, and from the free
  head, on rows that pretraining did not use; tokens of fine-tuning are added to those of
  pretraining;
- the vanilla models.

Held-out perplexity and accuracy are those that the runs logged. How many steps of the paper's
fine-tuning the free head is worth is read from the fine-tuning curve, interpolated linearly
between evaluations. With --lambada_file, the LM Evaluation Harness scores the models of the first
seed on LAMBADA. Training and scoring done before are not repeated. The results also show table 3
of the paper, the end of its figure 5.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

import shared
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from headless_trainer import attach_lm_head
from headless_trainer.models.fold import fold_head_bias
from headless_trainer.presentation.pictures import Panel, Series, draw_panels
from headless_trainer.presentation.tables import markdown
from headless_trainer.reporting.run_comparison import first_reaching
from headless_trainer.scoring.score_comparison import compare_scores, comparison_table
from headless_trainer.scoring.score_store import folder_name, read_results

PUBLISHED = Path(__file__).with_name("published_paper.json")
LAMBADA = "lambada_openai"
ALONE = "E^T alone"
FREE = "free head"
# By --init of run_lm_head.py.
TUNED = {
    "embeddings": "fine-tuned from E^T",
    "prior": "fine-tuned from the free head",
}
TUNING_EVALUATIONS = 8
HELD_OUT = ("tokens_seen", "eval_accuracy", "eval_perplexity")
FIGURES = {
    "eval_accuracy": "held-out accuracy",
    "eval_perplexity": "held-out perplexity",
    "lambada_accuracy": "LAMBADA accuracy",
    "lambada_perplexity": "LAMBADA perplexity",
}


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    recipes = (args.headless, *args.vanilla)
    # Refuses an unknown recipe before the first run.
    for recipe in recipes:
        shared.flags_of(recipe)
    shared.prepare(args)

    def pretrain(run: tuple[int, str]) -> float:
        seed, recipe = run
        return shared.pretrain(args, recipe, args.rate, seed)

    shared.mapped(args, pretrain, itertools.product(args.seeds, recipes))
    tunings = itertools.product(args.seeds, steps_of(args), TUNED)
    shared.mapped(args, lambda tuning: fine_tune(args, *tuning), tunings)
    tuned = {
        (seed, step): {init: held_out(tuning_dir(args, seed, step, init)) for init in TUNED}
        for seed, step in itertools.product(args.seeds, steps_of(args))
    }
    models = []
    for (seed, step), curves in tuned.items():
        models += models_at(args, seed, step, curves)
    tests = {}
    if args.lambada_file:
        tests = score_lambada(args, [model for model in models if model["seed"] == args.seeds[0]])
    report(args, models, tuned, tests)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments, with the scale's values for those not given."""
    parser = shared.model_arguments(__doc__, recipes=False)
    parser.add_argument(
        "--headless", default="headless + Muon", help="a recipe, named as in recipe.py"
    )
    vanilla = ["vanilla tied + bias log q + Muon", "vanilla untied + bias log q + Muon"]
    parser.add_argument(
        "--vanilla", nargs="*", default=vanilla, help="recipes to compare with it, perhaps none"
    )
    parser.add_argument(
        "--rate", type=float, help="learning rate of all recipes; default: the scale's"
    )
    parser.add_argument(
        "--checkpoints", type=int, default=4, help="number along the pretraining, including its end"
    )
    parser.add_argument(
        "--tuning_steps", type=int, default=400, help="steps of each fine-tuning, of 16 rows"
    )
    parser.add_argument("--tuning_rate", type=float, default=1e-4, help="default: the paper's")
    parser.add_argument(
        "--lambada_file", type=Path, help="LAMBADA documents, one JSON object with 'text' per line"
    )
    args = parser.parse_args(argv)
    args = shared.at_scale(args, evaluations=args.checkpoints, max_steps=200, learning_rate=8e-3)
    args.rate = args.rate or args.settings["learning_rate"]
    if args.task != "clm":
        parser.error("--task mlm: this study compares heads of decoders only.")
    if args.max_steps % args.checkpoints:
        parser.error(
            f"--checkpoints {args.checkpoints} does not divide --max_steps {args.max_steps}: "
            "choose another."
        )
    if args.tuning_steps % TUNING_EVALUATIONS:
        parser.error(
            f"--tuning_steps {args.tuning_steps} is not a multiple of its {TUNING_EVALUATIONS} "
            "evaluations: choose another."
        )
    args.settings |= {
        "save_steps": args.max_steps // args.checkpoints,
        "save_total_limit": args.checkpoints,
    }
    return args


def steps_of(args) -> list[int]:
    """Return the steps of all checkpoints, the last being the end."""
    steps_between = args.max_steps // args.checkpoints
    return [steps_between * number for number in range(1, args.checkpoints + 1)]


def checkpoint(args, recipe: str, seed: int, step: int) -> Path:
    """Return the folder of a pretraining's checkpoint."""
    return shared.run_dir(args, recipe, args.rate, seed) / f"checkpoint-{step}"


def tuning_dir(args, seed: int, step: int, init: str) -> Path:
    """Return the folder of the fine-tuning of a headless checkpoint."""
    return args.output_dir / "heads" / f"{init}_{seed}_{step}"


def fine_tune(args, seed: int, step: int, init: str) -> None:
    """Fine-tune the head of a checkpoint with the trunk, with an evaluation at step 0 and
    ``TUNING_EVALUATIONS`` along the way.
    """
    folder = tuning_dir(args, seed, step, init)
    flags = shared.data_settings(args) | {
        "model_name_or_path": checkpoint(args, args.headless, seed, step),
        "init": init,
        "output_dir": folder,
        "max_steps": args.tuning_steps,
        "learning_rate": args.tuning_rate,
        "per_device_train_batch_size": 16,
        "warmup_steps": 10,
        # Another order of the rows than that of the pretraining.
        "seed": 1_000 + seed,
        "eval_on_start": "true",
        "eval_strategy": "steps",
        "eval_steps": args.tuning_steps // TUNING_EVALUATIONS,
        "save_strategy": "no",
        "logging_steps": 10,
        "disable_tqdm": "true",
    }
    command = [sys.executable, "run_lm_head.py", "--do_train", *shared.as_flags(flags)]
    if shared.results_of(command, folder, "trainer_state.json", args.jobs) is None:
        raise SystemExit(f"The fine-tuning in {folder} diverged: choose a smaller --tuning_rate.")


def held_out(run: Path) -> dict[int, dict]:
    """Return tokens seen, held-out accuracy and held-out perplexity of a run, by optimizer step."""
    return {
        point["step"]: {name: point[name] for name in HELD_OUT}
        for point in shared.held_out_points(run)
    }


def models_at(args, seed: int, step: int, tuned: dict[str, dict[int, dict]]) -> list[dict]:
    """Return all models at one step of the pretraining, with tokens, held-out figures and folders,
    which may not exist yet.

    Args:
        tuned: `held_out` of the fine-tunings from this step, by the head's initialization.
    """
    models = []

    def add(series: str, folder: Path, point: dict, earlier_tokens: int = 0) -> None:
        models.append(
            {
                "series": series,
                "seed": seed,
                "step": step,
                "folder": folder,
                "tokens": earlier_tokens + point["tokens_seen"],
                "eval_accuracy": point["eval_accuracy"],
                "eval_perplexity": point["eval_perplexity"],
            }
        )

    headless = shared.run_dir(args, args.headless, args.rate, seed)
    pretrained_tokens = held_out(headless)[step]["tokens_seen"]
    # A fine-tuning begins with an evaluation of the head as it was initialized.
    add(ALONE, headless / f"alone_{step}", tuned["embeddings"][0], pretrained_tokens)
    add(FREE, headless / f"free_{step}", tuned["prior"][0], pretrained_tokens)
    for init, curve in tuned.items():
        folder = tuning_dir(args, seed, step, init)
        add(TUNED[init], folder, curve[args.tuning_steps], pretrained_tokens)
    for recipe in args.vanilla:
        run = shared.run_dir(args, recipe, args.rate, seed)
        add(recipe, run / f"model_{step}", held_out(run)[step])
    return models


def score_lambada(args, models: list[dict]) -> dict[tuple[str, str], list]:
    """Add to each model its accuracy and perplexity on LAMBADA by the LM Evaluation Harness;
    return tests at the last step.
    """
    for model in models:
        if not (model["folder"] / "model.safetensors").is_file():
            write_language_model(args, model)
    folder = args.output_dir / "heads" / "lambada"
    command = [sys.executable, "run_lm_eval.py", "--tasks", LAMBADA]
    command += ["--max_length", str(args.settings["max_seq_length"])]
    command += ["--data_files", f"{LAMBADA}={args.lambada_file}", "--output_dir", str(folder)]
    command += ["--model_name_or_path", *(str(model["folder"]) for model in models)]
    subprocess.run(command, check=True)
    scores_at_end = {}
    for model in models:
        scores = folder / folder_name(str(model["folder"]))
        values = read_results(scores)["results"][LAMBADA]
        model["lambada_accuracy"] = values["acc,none"]
        model["lambada_perplexity"] = values["perplexity,none"]
        if model["step"] == args.max_steps:
            scores_at_end[model["series"]] = scores
    return {
        (ours, vanilla): compare_scores(scores_at_end[ours], scores_at_end[vanilla])
        for ours, vanilla in itertools.product((FREE, TUNED["embeddings"]), args.vanilla)
    }


def write_language_model(args, model: dict) -> None:
    """Write the language model of a checkpoint, one that was not fine-tuned, into its folder."""
    inits = {ALONE: "embeddings", FREE: "prior"}
    series = model["series"]
    if series in inits:
        source = checkpoint(args, args.headless, model["seed"], model["step"])
        language_model = attach_lm_head(source, init=inits[series])
    else:
        source = checkpoint(args, series, model["seed"], model["step"])
        language_model = vanilla_model(source)
    language_model.save_pretrained(model["folder"])
    AutoTokenizer.from_pretrained(source).save_pretrained(model["folder"])


def vanilla_model(folder: Path):
    """Load the language model of a vanilla checkpoint, whose head may have a bias that its class
    lacks.
    """
    model = AutoModelForCausalLM.from_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    if "lm_head.bias" in weights and model.get_output_embeddings().bias is None:
        model.get_output_embeddings().bias = nn.Parameter(weights["lm_head.bias"])
        model = fold_head_bias(model)
    return model


def steps_worth(tuned: dict[str, dict[int, dict]]) -> float | None:
    """Return after how many steps fine-tuning from E^T reaches the free head's held-out
    perplexity; None if it never does.
    """
    points = [
        (step, point["eval_perplexity"]) for step, point in sorted(tuned["embeddings"].items())
    ]
    return first_reaching(points, tuned["prior"][0]["eval_perplexity"])


def report(args, models: list[dict], tuned: dict[tuple[int, int], dict], tests: dict) -> None:
    """Write the tables, the pictures and the results.

    Args:
        args: the study's arguments.
        models: `models_at` all steps, those of the first seed perhaps with scores on LAMBADA.
        tuned: by seed and step, the fine-tunings from there as in `models_at`.
        tests: on LAMBADA, by the two series that each compares.
    """
    figures = [name for name in FIGURES if name in models[0]]
    worth = {
        step: [steps_worth(tuned[seed, step]) for seed in args.seeds] for step in steps_of(args)
    }
    tables = [table_of_models(args, models, figures), "", table_of_worths(args, worth)]
    for pair, scores in tests.items():
        tables.append("\n" + comparison_table(scores, pair))
    tables += ["", "The paper's figures at the end of its pretraining (table 3):", ""]
    tables.append(table_of_paper())
    results = {
        "models": [
            {name: value for name, value in model.items() if name != "folder"} for model in models
        ],
        "steps_worth": worth,
        "tests": [
            (pair, [dataclasses.asdict(score) for score in scores])
            for pair, scores in tests.items()
        ],
        "along the fine-tuning, by seed and step": {
            init: {f"{seed}, {step}": curves[init] for (seed, step), curves in tuned.items()}
            for init in TUNED
        },
    }
    shared.write_results(
        args.results_dir or args.output_dir / "heads" / "results",
        results,
        tables,
        draw(args, models, figures, tuned[args.seeds[0], args.max_steps]),
        [
            shared.run_dir(args, recipe, args.rate, seed)
            for recipe, seed in itertools.product((args.headless, *args.vanilla), args.seeds)
        ],
    )


def table_of_models(args, models: list[dict], figures: list[str]) -> str:
    """Return a table of the figures of each series at each step, over seeds."""
    all_series = (ALONE, FREE, *TUNED.values(), *args.vanilla)
    rows = []
    for series, step in itertools.product(all_series, steps_of(args)):
        of_seeds = [
            model for model in models if model["series"] == series and model["step"] == step
        ]
        cells = [series, f"{step:,}", f"{of_seeds[0]['tokens'] / 1e6:.2f}"]
        for name in figures:
            values = [model[name] for model in of_seeds if name in model]
            if "accuracy" in name:
                cells.append(shared.spread([100 * value for value in values], 2) + " %")
            else:
                cells.append(shared.spread(values, 1))
        rows.append(cells)
    head = ["model", "pretraining steps", "tokens (M)", *(FIGURES[name] for name in figures)]
    return markdown(head, rows)


def table_of_worths(args, worth: dict[int, list[float | None]]) -> str:
    """Return a table of `steps_worth` of all seeds, by pretraining step."""
    rows = []
    for step, values in worth.items():
        shown = f"more than {args.tuning_steps:,}"
        if None not in values:
            shown = shared.spread(values, 0)
        rows.append((f"{step:,}", shown))
    head = ["pretraining steps", "steps of the paper's fine-tuning that the free head is worth"]
    return markdown(head, rows)


def table_of_paper() -> str:
    """Return table 3 of the paper."""
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))["tables"]["3"]["rows"]
    rows = []
    for name, row in published.items():
        accuracy = f"{row['lambada_openai acc']:.2f}%"
        rows.append((name, accuracy, f"{row['lambada_openai perplexity']:,.1f}"))
    return markdown(["model", "LAMBADA accuracy", "LAMBADA perplexity"], rows)


def draw(args, models: list[dict], figures: list[str], at_end: dict[str, dict[int, dict]]):
    """Draw perplexities along the pretraining, and along the fine-tuning from its end."""
    all_series = (*args.vanilla, *TUNED.values(), FREE, ALONE)
    colours = {series: f"C{index}" for index, series in enumerate(all_series)}
    panels = []
    for name in figures:
        if "perplexity" not in name:
            continue
        curves = []
        for series, colour in colours.items():
            values_at: dict[float, list[float]] = {}
            for model in models:
                if model["series"] == series and name in model:
                    values_at.setdefault(model["tokens"] / 1e6, []).append(model[name])
            means = map(statistics.mean, values_at.values())
            curves.append(Series(values_at, means, "o-", color=colour, label=series))
        xlabel = "tokens seen (millions)"
        panels.append(Panel(curves, xlabel=xlabel, ylabel=FIGURES[name], yscale="log"))
    curves = []
    for init, label in TUNED.items():
        steps, points = zip(*sorted(at_end[init].items()), strict=True)
        perplexities = [point["eval_perplexity"] for point in points]
        curves.append(Series(steps, perplexities, "o-", color=colours[label], label=label))
    xlabel = "steps of fine-tuning at the end"
    ylabel = FIGURES["eval_perplexity"]
    panels.append(Panel(curves, xlabel=xlabel, ylabel=ylabel, yscale="log"))
    return draw_panels(panels, legend="below")


if __name__ == "__main__":
    main()
