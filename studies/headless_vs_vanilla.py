#!/usr/bin/env python
"""Headless beside vanilla pretraining on the same rows: at equal tokens and at equal time.

    python studies/headless_vs_vanilla.py --train_file corpus.txt.gz --output_dir runs/study --task clm --max_steps 320

Every run sees the same rows in the same order with the same optimizer and a constant learning rate after warm-up, so that a
vanilla run can be read at any point: when it has seen as many tokens as the headless one, and when it has trained for as many
seconds. Runs that are finished are not repeated. `--report_only` makes table and picture of what is there.

The decoder is that of the paper's table 10 (GPT-2, 3 layers of width 192), the encoder BERT-small (4 layers of width 512).
"""

import argparse
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared import held_out_points, prepare, results_argument, run_or_resume, write_results

from headless_trainer.runtime import plotting

MODELS = {
    "clm": [
        *("--model_type", "gpt2", "--config_overrides", "n_embd=192,n_head=3,n_layer=3"),
        *("--per_device_train_batch_size", "64", "--learning_rate", "1e-3"),
    ],
    "mlm": [
        *("--model_type", "bert"),
        *("--config_overrides", "hidden_size=512,num_hidden_layers=4,num_attention_heads=8,intermediate_size=2048"),
        *("--per_device_train_batch_size", "16", "--learning_rate", "5e-4"),
    ],
}
VARIANTS = {
    "headless": [],
    "headless, corrected": ["--log_q_correction", "true"],
    "vanilla, tied": ["--objective", "vanilla", "--tie_word_embeddings", "true"],
    "vanilla, untied": ["--objective", "vanilla", "--tie_word_embeddings", "false"],
    "vanilla, tied, bias log q": ["--objective", "vanilla", "--tie_word_embeddings", "true", "--head_bias", "prior"],
}
COLOURS = {
    "headless": "C0",
    "vanilla, tied": "C1",
    "vanilla, untied": "C2",
    "vanilla, tied, bias log q": "C3",
    "headless, corrected": "C4",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", help="the corpus; the documentation on this machine by default")
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument("--task", choices=MODELS, default="clm")
    parser.add_argument("--max_steps", type=int, default=320, help="optimizer steps of every run")
    parser.add_argument("--eval_steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--variants", nargs="+", default=["headless", "vanilla, tied", "vanilla, untied"], choices=VARIANTS
    )
    parser.add_argument("--vocab_size", type=int, default=32_000)
    parser.add_argument("--config_overrides", help="another size: hidden_size=256,num_hidden_layers=4,...")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on its share of the cores")
    parser.add_argument(
        "--tokens_per_second",
        nargs="+",
        default=[],
        metavar="RUN=RATE",
        help="paces measured on a quiet machine (benchmarks/step.py), instead of those the runs logged",
    )
    parser.add_argument("--report_only", action="store_true")
    results_argument(parser)
    args = parser.parse_args()
    runs = [(variant, seed) for seed in args.seeds for variant in args.variants]
    if not args.report_only:
        args.scale, args.tokenizer_name, args.settings = (
            "own",
            None,
            {"train_file": args.train_file, "max_seq_length": 128},
        )
        prepare(args)
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda run: pretrain(args, *run), runs))
    report(args, runs)


def run_dir(args, variant: str, seed: int) -> Path:
    return args.output_dir / f"{args.task}_{variant.replace(', ', '_').replace(' ', '_')}_{seed}"


def pretrain(args, variant: str, seed: int) -> None:
    folder = run_dir(args, variant, seed)
    if (folder / "eval_results.json").is_file():
        return
    command = [sys.executable, "run_pretrain.py", *MODELS[args.task], *VARIANTS[variant], "--task", args.task]
    command += ["--tokenizer_name", str(args.output_dir / f"{args.task}_tokenizer"), "--output_dir", str(folder)]
    command += ["--config_overrides", args.config_overrides] if args.config_overrides else []
    command += ["--train_file", *args.train_file] if args.train_file else []
    command += ["--validation_split_percentage", "1", "--max_eval_samples", "200", "--seed", str(seed)]
    command += [
        "--max_steps",
        str(args.max_steps),
        "--lr_scheduler_type",
        "constant_with_warmup",
        "--warmup_steps",
        "20",
    ]
    command += ["--eval_strategy", "steps", "--eval_steps", str(args.eval_steps), "--logging_steps", "5"]
    command += ["--save_steps", str(args.eval_steps), "--weight_decay", "0.01", "--disable_tqdm", "true"]
    run_or_resume(command, folder, args.jobs)


def reading_at(points: list[dict], axis: str, value: float) -> dict | None:
    """Held-out figures when ``axis`` reaches ``value``, on the straight line between two evaluations."""
    for before, after in zip(points, points[1:], strict=False):
        if before[axis] <= value <= after[axis]:
            weight = (value - before[axis]) / max(after[axis] - before[axis], 1e-9)
            names = ("eval_accuracy", "eval_cross_entropy", "tokens_seen", "seconds")
            return {name: before[name] + weight * (after[name] - before[name]) for name in names}
    return None


def report(args, runs: list[tuple[str, int]]) -> None:
    measured = {name: float(value) for name, _, value in (text.partition("=") for text in args.tokens_per_second)}
    folders = {run: run_dir(args, *run) for run in runs}
    found = {
        run: held_out_points(folder, measured.get(run[0]))
        for run, folder in folders.items()
        if (folder / "trainer_state.json").is_file()
    }
    rows = ["| run | seed | read at | seconds | tokens (M) | tokens/s | held-out accuracy | perplexity |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    for (variant, seed), points in found.items():
        reference = found.get(("headless", seed), points)[-1]
        if variant == "headless":
            plain = {name: points[-1][f"{name}_without_bias"] for name in ("eval_accuracy", "eval_cross_entropy")}
            rows.append(table_row("headless, projected on E^T alone", seed, "the end", points[-1] | plain))
        else:
            point = reading_at(points, "seconds", reference["seconds"])
            rows += [table_row(variant, seed, "headless's time", point)] if point else []
        rows.append(table_row(variant, seed, "the end", points[-1]))
    results = [{"run": variant, "seed": seed, "points": points} for (variant, seed), points in found.items()]
    folder = args.results_dir or args.output_dir / f"{args.task}_results"
    write_results(folder, results, rows, draw(args, found), [folders[run] for run in found])


def table_row(variant: str, seed: int, label: str, point: dict) -> str:
    tokens, seconds = point["tokens_seen"], point["seconds"]
    return (
        f"| {variant} | {seed} | {label} | {seconds:,.0f} | {tokens / 1e6:.2f} | {tokens / seconds:,.0f} "
        f"| {point['eval_accuracy']:.1%} | {math.exp(point['eval_cross_entropy']):,.0f} |"
    )


def draw(args, found: dict):
    figure, axes = plotting.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for (variant, seed), points in found.items():
        for axis, name, scale in zip(axes, ("tokens_seen", "seconds"), (1e6, 60), strict=True):
            accuracy = [100 * point["eval_accuracy"] for point in points]
            label = variant if seed == args.seeds[0] else None
            axis.plot(
                [point[name] / scale for point in points], accuracy, "o-", ms=3, color=COLOURS[variant], label=label
            )
    for axis, label in zip(axes, ("tokens seen (millions)", "training time (minutes)"), strict=True):
        axis.set_xlabel(label)
    axes[0].set_ylabel(f"held-out {'masked' if args.task == 'mlm' else 'next'}-token accuracy (%)")
    axes[0].legend(frameon=False)
    return figure


if __name__ == "__main__":
    main()
