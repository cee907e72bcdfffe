#!/usr/bin/env python
"""Each way of pretraining at its own best learning rate: the baselines, headless, and headless with one ingredient more.

    python studies/recipe.py --train_file corpus.txt.gz --output_dir runs/recipe --task clm

For each recipe the first seed tries every rate of the grid, and further ones while the best lies at its edge; then the other
seeds are trained at the best one. The rows, their order and the held-out rows are the same for all runs of a seed. Runs that
are finished are not repeated, those cut off go on. ``--report_only`` makes table and picture of what is there.
"""

import argparse
import json
import math
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headless_vs_vanilla import held_out_points, prepare_tokenizer, run_or_resume

from headless_trainer.runtime import plotting

# No dropout: every row is seen once, and it costs all recipes about a tenth of their perplexity.
GPT2 = "resid_pdrop=0,embd_pdrop=0,attn_pdrop=0"
BERT = "hidden_dropout_prob=0,attention_probs_dropout_prob=0"
SIZES = {
    ("clm", "small"): ("gpt2", f"n_embd=128,n_head=2,n_layer=2,{GPT2}"),
    ("clm", "medium"): ("gpt2", f"n_embd=192,n_head=3,n_layer=3,{GPT2}"),
    ("mlm", "small"): (
        "bert",
        f"hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512,{BERT}",
    ),
    ("mlm", "medium"): (
        "bert",
        f"hidden_size=256,num_hidden_layers=4,num_attention_heads=4,intermediate_size=1024,{BERT}",
    ),
}
BASES = {
    "headless": [],
    "vanilla tied": ["--objective", "vanilla", "--tie_word_embeddings", "true"],
    "vanilla untied": ["--objective", "vanilla", "--tie_word_embeddings", "false"],
}
# What can be added to a base, with a plus sign. A number in front of x is multiplied by the learning rate.
INGREDIENTS = {
    "bias log q": ["--head_bias", "prior"],  # of a vanilla decoder; vanilla encoders have a bias of their own
    "Muon": ["--muon_learning_rate", "2x"],
    "Muon x 4": ["--muon_learning_rate", "4x"],
    "Muon x 1": ["--muon_learning_rate", "1x"],
    "pools of 512": ["--pool_size", "512"],
    "pools of 2048": ["--pool_size", "2048"],
    "4096 uniform": ["--sampled_negatives", "4096"],
    "4096 by square root": ["--sampled_negatives", "4096", "--sampling_power", "0.5"],
    "4096 by frequency": ["--sampled_negatives", "4096", "--sampling_power", "1"],
    "exact at the end": ["--softmax_share", "0.2"],
    "input gradients x 3": ["--input_grad_scale", "3"],
    "masking 30 %": ["--mlm_probability", "0.3"],
    "masking 30 to 15 %": ["--mlm_probability", "0.3", "--mlm_probability_end", "0.15"],
    "next tokens first": ["--next_token_share", "0.5"],
}
EXTENSIONS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", help="the corpus; the documentation on this machine by default")
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument("--task", choices=["clm", "mlm"], default="clm")
    parser.add_argument("--size", choices=["small", "medium"], default="small")
    parser.add_argument(
        "--recipes",
        nargs="+",
        default=["vanilla tied + bias log q", "headless"],
        help=f"a base ({', '.join(BASES)}) and, each after a plus sign, ingredients ({', '.join(INGREDIENTS)})".replace(
            "%", "%%"
        ),
    )
    parser.add_argument("--rates", nargs="+", type=float, default=[2e-3, 4e-3, 8e-3], help="the grid, ascending")
    parser.add_argument("--schedule", default="cosine", help="as --lr_scheduler_type")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--max_steps", type=int, default=300, help="optimizer steps of every run")
    parser.add_argument("--batch_size", type=int, default=32, help="rows of 128 tokens in a step")
    parser.add_argument("--vocab_size", type=int, default=8_000)
    parser.add_argument("--baseline", default="vanilla tied + bias log q")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on its share of the cores")
    parser.add_argument("--report_only", action="store_true")
    args = parser.parse_args()
    for recipe in args.recipes:
        flags_of(recipe)
    if not args.report_only:
        prepare_tokenizer(args)
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda recipe: search(args, recipe), args.recipes))
    report(args)


def flags_of(recipe: str) -> list[str]:
    """Flags of run_pretrain.py that a recipe stands for."""
    base, *ingredients = recipe.split(" + ")
    unknown = [
        part for part, known in ((base, BASES), *((part, INGREDIENTS) for part in ingredients)) if part not in known
    ]
    if unknown:
        raise SystemExit(f"--recipes: {recipe!r} has {unknown[0]!r}; bases and ingredients are listed by --help.")
    return [*BASES[base], *(flag for part in ingredients for flag in INGREDIENTS[part])]


def run_dir(args, recipe: str, rate: float, seed: int) -> Path:
    name = "".join(letter if letter.isalnum() else "_" for letter in recipe.replace(" + ", "_"))
    return args.output_dir / f"{args.task}_{args.size}_{args.schedule}" / name / f"{rate:g}_{seed}"


def search(args, recipe: str) -> None:
    """The grid at the first seed, wider while the best rate lies at its edge, then the other seeds at the best rate."""
    rates = sorted(args.rates)
    found = {rate: pretrain(args, recipe, rate, args.seeds[0]) for rate in rates}
    for _ in range(EXTENSIONS):
        best = min(found, key=found.get)
        if best not in (min(found), max(found)):
            break
        rate = best / 2 if best == min(found) else best * 2
        found[rate] = pretrain(args, recipe, rate, args.seeds[0])
    for seed in args.seeds[1:]:
        pretrain(args, recipe, min(found, key=found.get), seed)


def pretrain(args, recipe: str, rate: float, seed: int) -> float:
    """Train if that was not done before; the held-out cross-entropy at the end, infinite where the run diverged."""
    folder = run_dir(args, recipe, rate, seed)
    if not (folder / "eval_results.json").is_file() and not (folder / "diverged").is_file():
        kind, overrides = SIZES[args.task, args.size]
        flags = [f"{float(flag[:-1]) * rate:g}" if flag.endswith("x") else flag for flag in flags_of(recipe)]
        evaluations = max(1, args.max_steps // 10)
        command = [
            *(
                sys.executable,
                "run_pretrain.py",
                "--task",
                args.task,
                "--model_type",
                kind,
                "--config_overrides",
                overrides,
            ),
            *("--tokenizer_name", args.output_dir / f"{args.task}_tokenizer", "--output_dir", folder, *flags),
            *(["--train_file", *args.train_file] if args.train_file else []),
            *(
                "--validation_split_percentage",
                "2",
                "--max_eval_samples",
                "200",
                "--seed",
                seed,
                "--learning_rate",
                rate,
            ),
            *(
                "--max_steps",
                args.max_steps,
                "--lr_scheduler_type",
                args.schedule,
                "--warmup_steps",
                args.max_steps // 20,
            ),
            *("--per_device_train_batch_size", args.batch_size, "--weight_decay", "0.01", "--adam_beta2", "0.98"),
            *("--eval_strategy", "steps", "--eval_steps", evaluations, "--logging_steps", "10"),
            *("--save_steps", args.max_steps, "--save_total_limit", "1", "--disable_tqdm", "true"),
        ]
        try:
            run_or_resume([str(part) for part in command], folder, args.jobs)
        except Exception:
            if "so the run stops" not in (folder / "console.log").read_text():
                raise
            (folder / "diverged").touch()
    if (folder / "diverged").is_file():
        return math.inf
    return json.loads((folder / "eval_results.json").read_text())["eval_cross_entropy"]


def finished(args, recipe: str) -> dict[float, dict[int, Path]]:
    """Folders of the runs of a recipe that came to their end, by rate and seed."""
    runs: dict[float, dict[int, Path]] = {}
    for path in sorted(run_dir(args, recipe, 0.0, 0).parent.glob("*/eval_results.json")):
        rate, seed = path.parent.name.split("_")
        runs.setdefault(float(rate), {})[int(seed)] = path.parent
    return runs


def report(args) -> None:
    """Write recipe.md, recipe.json and recipe.png for the recipes that have runs, each at its best rate."""
    rows = {}
    for recipe in args.recipes:
        runs = finished(args, recipe)
        if not runs:
            continue
        first = min(args.seeds)
        losses = {
            rate: held_out_points(seeds[first], None)[-1]["eval_cross_entropy"]
            for rate, seeds in runs.items()
            if first in seeds
        }
        rate = min(losses, key=losses.get)
        curves = {seed: held_out_points(folder, None) for seed, folder in sorted(runs[rate].items())}
        ends = [curve[-1] for curve in curves.values()]
        rows[recipe] = {
            "rate": rate,
            "rates_tried": {f"{tried:g}": math.exp(loss) for tried, loss in sorted(losses.items())},
            "seeds": list(curves),
            "perplexity": [math.exp(end["eval_cross_entropy"]) for end in ends],
            "accuracy": [end["eval_accuracy"] for end in ends],
            "tokens": ends[0]["tokens_seen"],
            "seconds": statistics.mean(end["seconds"] for end in ends),
            "curves": curves,
        }
    baseline = rows.get(args.baseline)
    table = ["| recipe | rate | seeds | perplexity | accuracy (%) | tokens for the baseline's end | its time |"]
    table.append("|---|---|---|---|---|---|---|")
    for recipe, row in rows.items():
        shares = reaching(row, baseline) if baseline else None
        shown = ["never", "never"] if shares is None else [f"{share:.0%}" for share in shares]
        accuracy = [100 * value for value in row["accuracy"]]
        table.append(
            f"| {recipe} | {row['rate']:g} | {len(row['seeds'])} | {spread(row['perplexity'], 1)} | {spread(accuracy, 2)} "
            f"| {shown[0]} | {shown[1]} |"
        )
    folder = run_dir(args, "x", 0.0, 0).parents[1]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.md").write_text("\n".join(table) + "\n")
    (folder / "recipe.json").write_text(json.dumps(rows, indent=1))
    print("\n".join(table))
    draw(rows, folder / "recipe.png")


def spread(values: list[float], digits: int) -> str:
    """Mean, and the standard error where there are several values."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ({statistics.stdev(values) / math.sqrt(len(values)):.{digits}f})"


def reaching(row: dict, baseline: dict) -> tuple[float, float] | None:
    """Shares of the baseline's tokens and of its time after which the mean curve is as good as the baseline's end.

    The curve is read on straight lines between its evaluations. Time is the tokens at the pace that the run logged.
    """
    wanted = statistics.mean(math.log(value) for value in baseline["perplexity"])
    curves = [[point["eval_cross_entropy"] for point in curve] for curve in row["curves"].values()]
    losses = [statistics.mean(values) for values in zip(*curves, strict=True)]
    tokens = [point["tokens_seen"] for point in next(iter(row["curves"].values()))]
    for index, loss in enumerate(losses):
        if loss > wanted:
            continue
        reached = tokens[index]
        if index:
            weight = (losses[index - 1] - wanted) / (losses[index - 1] - loss)
            reached = tokens[index - 1] + weight * (tokens[index] - tokens[index - 1])
        return reached / baseline["tokens"], reached / row["tokens"] * row["seconds"] / baseline["seconds"]
    return None


def draw(rows: dict, path: Path) -> None:
    figure, axes = plotting.load_pyplot().subplots(1, 2, figsize=(10, 4), sharey=True)
    for recipe, row in rows.items():
        curve = next(iter(row["curves"].values()))
        for axis, name, scale in zip(axes, ("tokens_seen", "seconds"), (1e6, 60), strict=True):
            points = [math.exp(point["eval_cross_entropy"]) for point in curve]
            axis.plot([point[name] / scale for point in curve], points, "o-", ms=2, label=recipe)
    for axis, label in zip(axes, ("tokens seen (millions)", "training time (minutes)"), strict=True):
        axis.set_xlabel(label)
        axis.set_yscale("log")
        for ticks in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            ticks("{x:.0f}")
    axes[0].set_ylabel("held-out perplexity")
    axes[0].legend(frameon=False, fontsize=7)
    plotting.save(figure, path)


if __name__ == "__main__":
    main()
