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
ALONE = "E^T alone"
FREE = "free head"
# By --init of run_lm_head.py.
TUNED = {
    "embeddings": "fine-tuned from E^T",
    "prior": "fine-tuned from the free head",
}
FIGURES = {
    "eval_accuracy": "held-out accuracy",
    "eval_perplexity": "held-out perplexity",
    "lambada_accuracy": "LAMBADA accuracy",
    "lambada_perplexity": "LAMBADA perplexity",
}


def main(argv: list[str] | None = None) -> None:
    parser = shared.model_arguments(__doc__, recipes=False)
    parser.add_argument(
        "--headless", default="headless + Muon", help="a recipe, named as in recipe.py"
    )
    vanilla = [f"vanilla {kind} + bias log q + Muon" for kind in ("tied", "untied")]
    parser.add_argument("--vanilla", nargs="+", default=vanilla, help="recipes to compare with it")
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
    if args.tuning_steps % 8:
        parser.error(
            f"--tuning_steps {args.tuning_steps} is not a multiple of its 8 evaluations: choose "
            "another."
        )
    args.settings |= {
        "save_steps": args.max_steps // args.checkpoints,
        "save_total_limit": args.checkpoints,
    }
    recipes = (args.headless, *args.vanilla)
    for recipe in recipes:
        shared.flags_of(recipe)
    shared.prepare(args)
    pairs = itertools.product(args.seeds, recipes)
    shared.mapped(args, lambda pair: shared.pretrain(args, pair[1], args.rate, pair[0]), pairs)
    tunings = itertools.product(args.seeds, steps_of(args), TUNED)
    shared.mapped(args, lambda tuning: fine_tune(args, *tuning), tunings)
    places = itertools.product(args.seeds, steps_of(args))
    tuned = {
        place: {init: held_out(tuning_dir(args, *place, init)) for init in TUNED}
        for place in places
    }
    models = [model for place, curves in tuned.items() for model in models_at(args, *place, curves)]
    first_seed = [model for model in models if model["seed"] == args.seeds[0]]
    report(args, models, tuned, score_lambada(args, first_seed) if args.lambada_file else {})


def steps_of(args) -> list[int]:
    return [args.max_steps // args.checkpoints * (1 + index) for index in range(args.checkpoints)]


def checkpoint(args, recipe: str, seed: int, step: int) -> Path:
    return shared.run_dir(args, recipe, args.rate, seed) / f"checkpoint-{step}"


def tuning_dir(args, seed: int, step: int, init: str) -> Path:
    return args.output_dir / "heads" / f"{init}_{seed}_{step}"


def fine_tune(args, seed: int, step: int, init: str) -> None:
    """Fine-tune the head of a checkpoint with the trunk, with an evaluation at step 0 and eight
    along the way.
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
        "seed": 1_000 + seed,
        "eval_on_start": "true",
        "eval_strategy": "steps",
        "eval_steps": args.tuning_steps // 8,
        "save_strategy": "no",
        "logging_steps": 10,
        "disable_tqdm": "true",
    }
    command = [sys.executable, "run_lm_head.py", "--do_train", *shared.as_flags(flags)]
    if shared.results_of(command, folder, "trainer_state.json", args.jobs) is None:
        raise SystemExit(f"The fine-tuning in {folder} diverged: choose a smaller --tuning_rate.")


def held_out(run: Path) -> dict[int, dict]:
    """Return tokens seen, held-out accuracy and held-out perplexity of a run, by optimizer step."""
    names = ("tokens_seen", "eval_accuracy", "eval_perplexity")
    return {
        point["step"]: {name: point[name] for name in names}
        for point in shared.held_out_points(run)
    }


def models_at(args, seed: int, step: int, tuned: dict[str, dict[int, dict]]) -> list[dict]:
    """Return all models at one step of the pretraining, with tokens, held-out figures and folders,
    which may not exist yet.

    Args:
        tuned: `held_out` of the fine-tunings from this step, by the head's initialization.
    """
    runs = {
        recipe: shared.run_dir(args, recipe, args.rate, seed)
        for recipe in (args.headless, *args.vanilla)
    }
    before = held_out(runs[args.headless])[step]["tokens_seen"]
    found = [
        (ALONE, before, runs[args.headless] / f"alone_{step}", tuned["embeddings"][0]),
        (FREE, before, runs[args.headless] / f"free_{step}", tuned["prior"][0]),
    ]
    for init, curve in tuned.items():
        found.append(
            (TUNED[init], before, tuning_dir(args, seed, step, init), curve[args.tuning_steps])
        )
    for recipe in args.vanilla:
        found.append((recipe, 0, runs[recipe] / f"model_{step}", held_out(runs[recipe])[step]))
    return [
        {
            "series": series,
            "seed": seed,
            "step": step,
            "folder": folder,
            "tokens": earlier + point["tokens_seen"],
        }
        | {name: point[name] for name in ("eval_accuracy", "eval_perplexity")}
        for series, earlier, folder, point in found
    ]


def score_lambada(args, models: list[dict]) -> dict[tuple[str, str], list[dict]]:
    """Add to each model its accuracy and perplexity on LAMBADA by the LM Evaluation Harness;
    return tests at the last step.
    """
    inits = {ALONE: "embeddings", FREE: "prior"}
    for model in models:
        if not (model["folder"] / "model.safetensors").is_file():
            init = inits.get(model["series"])
            source = checkpoint(
                args, args.headless if init else model["series"], model["seed"], model["step"]
            )
            made = attach_lm_head(source, init=init) if init else vanilla_model(source)
            made.save_pretrained(model["folder"])
            AutoTokenizer.from_pretrained(source).save_pretrained(model["folder"])
    folder = args.output_dir / "heads" / "lambada"
    length = str(args.settings["max_seq_length"])
    command = [
        sys.executable,
        "run_lm_eval.py",
        "--tasks",
        "lambada_openai",
        "--max_length",
        length,
    ]
    command += ["--data_files", f"lambada_openai={args.lambada_file}", "--output_dir", str(folder)]
    subprocess.run(
        [*command, "--model_name_or_path", *(str(model["folder"]) for model in models)], check=True
    )
    last = {}
    for model in models:
        results = folder / folder_name(str(model["folder"]))
        values = read_results(results)["results"]["lambada_openai"]
        for name, metric in (("lambada_accuracy", "acc"), ("lambada_perplexity", "perplexity")):
            model[name] = values[f"{metric},none"]
        if model["step"] == args.max_steps:
            last[model["series"]] = results
    pairs = itertools.product((FREE, TUNED["embeddings"]), args.vanilla)
    return {pair: compare_scores(*(last[series] for series in pair)) for pair in pairs}


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
    shown = [name for name in FIGURES if name in models[0]]
    rows = []
    for series, step in itertools.product(
        (ALONE, FREE, *TUNED.values(), *args.vanilla), steps_of(args)
    ):
        same = [model for model in models if (model["series"], model["step"]) == (series, step)]
        cells = [series, f"{step:,}", f"{same[0]['tokens'] / 1e6:.2f}"]
        for name in shown:
            values = [model[name] for model in same if name in model]
            percents = [100 * value for value in values]
            cells.append(
                shared.spread(percents, 2) + " %"
                if "accuracy" in name
                else shared.spread(values, 1)
            )
        rows.append(cells)
    worth = {
        step: [steps_worth(tuned[seed, step]) for seed in args.seeds] for step in steps_of(args)
    }
    never = f"more than {args.tuning_steps:,}"
    worths = [
        (f"{step:,}", never if None in values else shared.spread(values, 0))
        for step, values in worth.items()
    ]
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))["tables"]["3"]["rows"]
    figures = {
        name: (row["lambada_openai acc"], row["lambada_openai perplexity"])
        for name, row in published.items()
    }
    paper = [
        (name, f"{accuracy:.2f}%", f"{perplexity:,.1f}")
        for name, (accuracy, perplexity) in figures.items()
    ]
    table = [
        markdown(
            ["model", "pretraining steps", "tokens (M)", *(FIGURES[name] for name in shown)], rows
        ),
        *(
            "",
            markdown(
                [
                    "pretraining steps",
                    "steps of the paper's fine-tuning that the free head is worth",
                ],
                worths,
            ),
        ),
        *("\n" + comparison_table(compared, pair) for pair, compared in tests.items()),
        *("", "The paper's figures at the end of its pretraining (table 3):", ""),
        markdown(["model", "LAMBADA accuracy", "LAMBADA perplexity"], paper),
    ]
    along = {
        init: {f"{seed}, {step}": by_init[init] for (seed, step), by_init in tuned.items()}
        for init in TUNED
    }
    plain = [{name: value for name, value in model.items() if name != "folder"} for model in models]
    compared_scores = [
        (pair, [dataclasses.asdict(score) for score in scores]) for pair, scores in tests.items()
    ]
    results = {"models": plain, "steps_worth": worth, "tests": compared_scores}
    results["along the fine-tuning, by seed and step"] = along
    pairs = itertools.product((args.headless, *args.vanilla), args.seeds)
    runs = [shared.run_dir(args, recipe, args.rate, seed) for recipe, seed in pairs]
    folder = args.results_dir or args.output_dir / "heads" / "results"
    shared.write_results(
        folder,
        results,
        table,
        draw(args, models, shown, tuned[args.seeds[0], args.max_steps]),
        runs,
    )


def draw(args, models: list[dict], shown: list[str], at_end: dict[str, dict[int, dict]]):
    """Draw perplexities along the pretraining, and along the fine-tuning from its end."""
    names = [name for name in shown if "perplexity" in name]
    colours = {
        series: f"C{index}"
        for index, series in enumerate((*args.vanilla, *TUNED.values(), FREE, ALONE))
    }
    panels = []
    for name in names:
        drawn = []
        for series, colour in colours.items():
            same = [model for model in models if model["series"] == series and name in model]
            points = {model["tokens"] / 1e6: [] for model in same}
            for model in same:
                points[model["tokens"] / 1e6].append(model[name])
            drawn.append(
                Series(
                    points, map(statistics.mean, points.values()), "o-", color=colour, label=series
                )
            )
        panels.append(
            Panel(drawn, xlabel="tokens seen (millions)", ylabel=FIGURES[name], yscale="log")
        )
    drawn = []
    for init, label in TUNED.items():
        steps, points = zip(*sorted(at_end[init].items()), strict=True)
        perplexities = [point["eval_perplexity"] for point in points]
        drawn.append(Series(steps, perplexities, "o-", color=colours[label], label=label))
    panels.append(
        Panel(
            drawn,
            xlabel="steps of fine-tuning at the end",
            ylabel=FIGURES["eval_perplexity"],
            yscale="log",
        )
    )
    return draw_panels(panels, legend="below")


if __name__ == "__main__":
    main()
