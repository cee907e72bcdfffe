#!/usr/bin/env python
"""The heads that a headless decoder can have, along its pretraining and their fine-tuning: figure 5 of arXiv 2309.08351.

    python studies/heads.py --train_file corpus.txt.gz --output_dir runs/heads --lambada_file lambada.jsonl

Pretrains --headless and each --vanilla with the same rows, schedule and rate. At each of --checkpoints stand

- E^T alone, which the paper calls headless;
- the free head, E^T + log q;
- the head fine-tuned with the trunk from E^T, as in section 4.2 of the paper, and from the free head, on other rows than those
  of the pretraining: their tokens are added to those before;
- the vanilla models.

Held-out perplexity and accuracy are those that the runs logged. How many steps of the paper's fine-tuning the free head is
worth is read off its curve, on straight lines between evaluations. With --lambada_file the models of the first seed are scored
on LAMBADA by the LM Evaluation Harness. What is trained or scored already is not repeated. Table 3 of the paper, the end of its
figure 5, stands beside the results.
"""

import itertools
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safetensors.torch import load_file
from shared import (
    as_flags,
    at_scale,
    data_settings,
    flags_of,
    log_history,
    model_arguments,
    plain_ticks,
    prepare,
    pretrain,
    results_of,
    run_dir,
    spread,
    write_results,
)
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from headless_trainer import attach_lm_head
from headless_trainer.models.fold import fold_head_bias
from headless_trainer.reporting.run_comparison import first_reaching
from headless_trainer.runtime import plotting
from headless_trainer.runtime.run_folder import tokens_at

PUBLISHED = Path(__file__).with_name("published_paper.json")
ALONE, FREE = "E^T alone", "free head"
TUNED = {"embeddings": "fine-tuned from E^T", "prior": "fine-tuned from the free head"}  # by --init of run_lm_head.py
FIGURES = {
    "eval_accuracy": "held-out accuracy", "eval_perplexity": "held-out perplexity",
    "lambada_accuracy": "LAMBADA accuracy", "lambada_perplexity": "LAMBADA perplexity",
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    parser = model_arguments(__doc__)
    parser.add_argument("--headless", default="headless + Muon", help="a recipe as recipe.py has them")
    parser.add_argument(
        "--vanilla", nargs="+", default=["vanilla tied + bias log q + Muon", "vanilla untied + bias log q + Muon"],
        help="others to set beside it",
    )  # fmt: skip
    parser.add_argument("--rate", type=float, help="learning rate of all: that of the scale by default")
    parser.add_argument("--checkpoints", type=int, default=4, help="along the pretraining, its end among them")
    parser.add_argument("--tuning_steps", type=int, default=400, help="of each fine-tuning, of 16 rows")
    parser.add_argument("--tuning_rate", type=float, default=1e-4, help="that of the paper by default")
    parser.add_argument("--lambada_file", type=Path, help="LAMBADA documents, one JSON object with 'text' a line")
    args = parser.parse_args(argv)
    args = at_scale(args, evaluations=args.checkpoints, max_steps=200, learning_rate=8e-3)
    args.rate = args.rate or args.settings["learning_rate"]
    if args.task != "clm":
        parser.error("--task mlm: the heads compared here are those of decoders.")
    if args.max_steps % args.checkpoints:
        parser.error(f"--checkpoints {args.checkpoints} does not divide --max_steps {args.max_steps}: choose another.")
    if args.tuning_steps % 8:
        parser.error(f"--tuning_steps {args.tuning_steps} is no multiple of 8, at which it is scored: choose another.")
    args.settings |= {"save_steps": args.max_steps // args.checkpoints, "save_total_limit": args.checkpoints}
    recipes = (args.headless, *args.vanilla)
    for recipe in recipes:
        flags_of(recipe)
    prepare(args)
    with ThreadPoolExecutor(args.jobs) as pool:
        pairs = itertools.product(args.seeds, recipes)
        list(pool.map(lambda pair: pretrain(args, pair[1], args.rate, pair[0]), pairs))
        tunings = itertools.product(args.seeds, steps_of(args), TUNED)
        list(pool.map(lambda tuning: fine_tune(args, *tuning), tunings))
    models = [
        model for seed, step in itertools.product(args.seeds, steps_of(args)) for model in models_at(args, seed, step)
    ]
    if args.lambada_file:
        score_lambada(args, [model for model in models if model["seed"] == args.seeds[0]])
    report(args, models)


def steps_of(args) -> list[int]:
    return [args.max_steps // args.checkpoints * (1 + index) for index in range(args.checkpoints)]


def checkpoint(args, recipe: str, seed: int, step: int) -> Path:
    return run_dir(args, recipe, args.rate, seed) / f"checkpoint-{step}"


def tuning_dir(args, seed: int, step: int, init: str) -> Path:
    return args.output_dir / "heads" / f"{init}_{seed}_{step}"


def fine_tune(args, seed: int, step: int, init: str) -> None:
    """Fine-tune the head of a checkpoint with the trunk, scored at step 0 and eight times along it."""
    folder = tuning_dir(args, seed, step, init)
    flags = data_settings(args) | {
        "model_name_or_path": checkpoint(args, args.headless, seed, step), "init": init, "output_dir": folder,
        "max_steps": args.tuning_steps, "learning_rate": args.tuning_rate, "per_device_train_batch_size": 16,
        "warmup_steps": 10, "seed": 1_000 + seed, "eval_on_start": "true", "eval_strategy": "steps",
        "eval_steps": args.tuning_steps // 8, "save_strategy": "no", "logging_steps": 10, "disable_tqdm": "true",
    }  # fmt: skip
    command = [sys.executable, "run_lm_head.py", "--do_train", *as_flags(flags)]
    if results_of(command, folder, "trainer_state.json", args.jobs) is None:
        raise SystemExit(f"The fine-tuning in {folder} diverged: give it a smaller --tuning_rate.")


def held_out(run: Path) -> dict[int, dict]:
    """Held-out accuracy and perplexity of a run by its optimizer steps."""
    names = ("eval_accuracy", "eval_perplexity")
    return {logs["step"]: {name: logs[name] for name in names} for logs in log_history(run) if "eval_accuracy" in logs}


def models_at(args, seed: int, step: int) -> list[dict]:
    """All models at one step of the pretraining, each with its tokens, held-out figures and the folder it is or will be in."""
    tokens = float(tokens_at(log_history(run_dir(args, args.headless, args.rate, seed)), step))
    tuned = {init: tuning_dir(args, seed, step, init) for init in TUNED}
    folders = args.output_dir / "heads"
    found = [
        (ALONE, tokens, folders / f"alone_{seed}_{step}", held_out(tuned["embeddings"])[0]),
        (FREE, tokens, folders / f"free_{seed}_{step}", held_out(tuned["prior"])[0]),
    ]
    for init, folder in tuned.items():
        after = tokens + float(tokens_at(log_history(folder), args.tuning_steps))
        found.append((TUNED[init], after, folder, held_out(folder)[args.tuning_steps]))
    for index, recipe in enumerate(args.vanilla):
        run = run_dir(args, recipe, args.rate, seed)
        folder = folders / f"vanilla_{index}_{seed}_{step}"
        found.append((recipe, float(tokens_at(log_history(run), step)), folder, held_out(run)[step]))
    return [
        {"series": series, "seed": seed, "step": step, "tokens": total, "folder": folder} | figures
        for series, total, folder, figures in found
    ]


def score_lambada(args, models: list[dict]) -> None:
    """Add accuracy and perplexity on LAMBADA, as the LM Evaluation Harness computes them, to what is known of models."""
    inits = {ALONE: "embeddings", FREE: "prior"}
    for model in models:
        if not (model["folder"] / "model.safetensors").is_file():
            init = inits.get(model["series"])
            source = checkpoint(args, args.headless if init else model["series"], model["seed"], model["step"])
            made = attach_lm_head(source, init=init) if init else vanilla_model(source)
            made.save_pretrained(model["folder"])
            AutoTokenizer.from_pretrained(source).save_pretrained(model["folder"])
    folder, length = args.output_dir / "heads" / "lambada", str(args.settings["max_seq_length"])
    command = [sys.executable, "run_lm_eval.py", "--tasks", "lambada_openai", "--max_length", length]
    command += ["--data_files", f"lambada_openai={args.lambada_file}", "--output_dir", str(folder)]
    subprocess.run([*command, "--model_name_or_path", *(str(model["folder"]) for model in models)], check=True)
    found = [json.loads(path.read_text()) for path in folder.glob("*/results.json")]
    scores = {results["model"]: results["tasks"]["lambada_openai"]["metrics"] for results in found}
    for model in models:
        metrics = scores[str(model["folder"])]
        for name, metric in (("lambada_accuracy", "acc"), ("lambada_perplexity", "perplexity")):
            model[name] = metrics[f"{metric},none"]["value"]


def vanilla_model(folder: Path):
    """The language model of a vanilla checkpoint, whose head may have a bias that its class does not know."""
    model, weights = AutoModelForCausalLM.from_pretrained(folder), load_file(folder / "model.safetensors")
    if "lm_head.bias" in weights and model.get_output_embeddings().bias is None:
        model.get_output_embeddings().bias = nn.Parameter(weights["lm_head.bias"])
        model = fold_head_bias(model)
    return model


def steps_worth(args, seed: int, step: int) -> float | None:
    """Steps of fine-tuning from E^T until its held-out perplexity is that of the free head; None where it never is."""
    curves = [held_out(tuning_dir(args, seed, step, init)) for init in ("prior", "embeddings")]
    points = [(position, figures["eval_perplexity"]) for position, figures in sorted(curves[1].items())]
    return first_reaching(points, curves[0][0]["eval_perplexity"])


def report(args, models: list[dict]) -> None:
    shown = [name for name in FIGURES if name in models[0]]
    table = [f"| model | pretraining steps | tokens (M) | {' | '.join(FIGURES[name] for name in shown)} |"]
    table.append("|" + "---|" * (3 + len(shown)))
    for series in (ALONE, FREE, *TUNED.values(), *args.vanilla):
        for step in steps_of(args):
            same = [model for model in models if (model["series"], model["step"]) == (series, step)]
            cells = [series, f"{step:,}", f"{same[0]['tokens'] / 1e6:.2f}"]
            for name in shown:
                values = [model[name] for model in same if name in model]
                percent = "accuracy" in name
                cells.append(spread([100 * value for value in values], 2) + " %" if percent else spread(values, 1))
            table.append(f"| {' | '.join(cells)} |")
    worth = {step: [steps_worth(args, seed, step) for seed in args.seeds] for step in steps_of(args)}
    table += ["", "| pretraining steps | steps of the paper's fine-tuning that the free head is worth |", "|---|---|"]
    for step, values in worth.items():
        never = f"more than {args.tuning_steps:,}"
        table.append(f"| {step:,} | {never if None in values else spread(values, 0)} |")
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))["tables"]["3"]["rows"]
    table += ["", "The paper's figures at the end of its pretraining (table 3):", ""]
    table += ["| model | LAMBADA accuracy | LAMBADA perplexity |", "|---|---|---|"]
    for name, row in published.items():
        accuracy, perplexity = (row[f"lambada_openai {metric}"] for metric in ("acc", "perplexity"))
        table.append(f"| {name} | {accuracy:.2f}% | {perplexity:,.1f} |")
    curves = {
        init: {f"{seed}, {step}": held_out(tuning_dir(args, seed, step, init))
               for seed, step in itertools.product(args.seeds, steps_of(args))}
        for init in TUNED
    }  # fmt: skip
    plain = [{name: value for name, value in model.items() if name != "folder"} for model in models]
    results = {"models": plain, "steps_worth": worth, "along the fine-tuning, by seed and step": curves}
    runs = [run_dir(args, recipe, args.rate, seed) for recipe in (args.headless, *args.vanilla) for seed in args.seeds]
    folder = args.results_dir or args.output_dir / "heads" / "results"
    write_results(folder, results, table, draw(args, models, shown), runs)


def draw(args, models: list[dict], shown: list[str]):
    """Perplexities along the pretraining, and along the fine-tuning of its end."""
    names = [name for name in shown if "perplexity" in name]
    colours = {series: f"C{index}" for index, series in enumerate((*args.vanilla, *TUNED.values(), FREE, ALONE))}
    figure, axes = plotting.subplots(1, len(names) + 1, figsize=(4.5 * (len(names) + 1), 3.8))
    for axis, name in zip(axes[:-1], names, strict=True):
        for series, colour in colours.items():
            same = [model for model in models if model["series"] == series and name in model]
            points = {model["tokens"] / 1e6: [] for model in same}
            for model in same:
                points[model["tokens"] / 1e6].append(model[name])
            means = [statistics.mean(values) for values in points.values()]
            axis.plot(list(points), means, "o-", ms=3, color=colour, label=series)
        axis.set(xlabel="tokens seen (millions)", ylabel=FIGURES[name])
    end, seed = args.max_steps, args.seeds[0]
    for init, label in TUNED.items():
        points = sorted(held_out(tuning_dir(args, seed, end, init)).items())
        perplexities = [each["eval_perplexity"] for _, each in points]
        axes[-1].plot([step for step, _ in points], perplexities, "o-", ms=3, color=colours[label], label=label)
    axes[-1].set(xlabel="steps of fine-tuning at the end", ylabel=FIGURES["eval_perplexity"])
    for axis in axes:
        axis.set_yscale("log")
        plain_ticks(axis.yaxis)
        axis.legend(frameon=False, fontsize=7)
    return figure


if __name__ == "__main__":
    main()
