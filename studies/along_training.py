#!/usr/bin/env python
"""A headless decoder along its pretraining, with each head it may have, beside a vanilla one: figure 5 of arXiv 2309.08351.

    python studies/along_training.py --model_name_or_path runs/study/clm_headless_0 --vanilla runs/study/clm_vanilla_tied_0 \
        --train_file corpus.txt.gz --output_dir runs/along --lambada_file lambada.jsonl

The runs are those of `studies/headless_vs_vanilla.py`, or others of run_pretrain.py that kept checkpoints and were scored at
them (--save_steps and --eval_steps alike). At each checkpoint of the headless run stand

- E^T alone, which the paper calls headless;
- the free head, E^T + log q;
- the head fine-tuned from E^T with the trunk, as in section 4.2, on other rows: its tokens are added to those before it.

Held-out perplexity and accuracy are those that the runs logged; with --lambada_file all models are scored on LAMBADA, too.
What is trained or scored already is not repeated. Table 3 of the paper, the end of its figure 5, stands beside the results.
"""

import argparse
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared import (
    free_head,
    from_checkpoint,
    held_out,
    log_history,
    plain_ticks,
    results_argument,
    score_lambada,
    tune_head,
    write_results,
)

from headless_trainer.runtime import plotting
from headless_trainer.runtime.run_folder import tokens_at

PUBLISHED = Path(__file__).with_name("published_paper.json")
VANILLA, ALONE, FREE, TUNED = "vanilla", "E^T alone", "free head", "fine-tuned from E^T"
FIGURES = {
    "eval_accuracy": "held-out accuracy", "eval_perplexity": "held-out perplexity",
    "lambada_accuracy": "LAMBADA accuracy", "lambada_perplexity": "LAMBADA perplexity",
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, type=Path, help="run of a headless decoder")
    parser.add_argument("--vanilla", type=Path, help="run of a vanilla decoder to set beside it")
    parser.add_argument("--train_file", nargs="+", help="the corpus; the documentation on this machine by default")
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument("--steps", type=int, nargs="+", help="checkpoints of both runs to take; all by default")
    parser.add_argument("--max_steps", type=int, default=50, help="of each fine-tuning, of 16 rows")
    parser.add_argument("--learning_rate", default="1e-4")
    parser.add_argument("--validation_split_percentage", default="1", help="as in the runs")
    parser.add_argument("--max_eval_samples", default="200", help="as in the runs")
    parser.add_argument("--max_seq_length", default="128", help="as in the runs, and the longest input on LAMBADA")
    parser.add_argument("--jobs", type=int, default=1, help="fine-tunings at a time, each on its share of the cores")
    parser.add_argument("--lambada_file", type=Path, help="LAMBADA documents, one JSON object with 'text' a line")
    results_argument(parser)
    args = parser.parse_args(argv)
    steps = scored_steps(args, args.model_name_or_path)
    others = scored_steps(args, args.vanilla) if args.vanilla else []
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda step: fine_tune(args, step), steps))
    models = [model for step in steps for model in headless_models(args, step)]
    models += [vanilla_model(args, step) for step in others]
    if args.lambada_file:
        score_lambada(models, args.lambada_file, args.output_dir / "lambada", args.max_seq_length)
    report(args, models)


def scored_steps(args, run: Path) -> list[int]:
    """Steps at which a run has both a checkpoint and held-out figures.

    Raises:
        SystemExit: if there are none, or one of --steps is not among them.
    """
    kept = sorted(int(path.name.rpartition("-")[2]) for path in run.glob("checkpoint-*"))
    scored = [step for step in kept if step in held_out(run)]
    wanted = args.steps or scored
    if missing := sorted({*wanted} - {*scored}):
        raise SystemExit(f"--steps: {run} has no checkpoint that was scored at {missing}, only at {scored}.")
    if not wanted:
        raise SystemExit(
            f"{run} has no checkpoint at a step at which it was scored: pretrain with --save_steps and --eval_steps alike."
        )
    return wanted


def checkpoint(run: Path, step: int) -> Path:
    return run / f"checkpoint-{step}"


def fine_tune(args, step: int) -> None:
    names = ("max_steps", "learning_rate", "validation_split_percentage", "max_eval_samples", "max_seq_length")
    settings = {name: getattr(args, name) for name in names}
    settings |= {"eval_steps": args.max_steps, "save_strategy": "no"}
    source = checkpoint(args.model_name_or_path, step)
    tune_head(source, args.output_dir / f"tuned_{step}", "embeddings", args.train_file, args.jobs, settings)


def headless_models(args, step: int) -> list[dict]:
    """The three models that one checkpoint gives, each with its tokens and held-out figures.

    Raises:
        SystemExit: if the fine-tuning was scored on other rows than the pretraining.
    """
    run, tuned = args.model_name_or_path, args.output_dir / f"tuned_{step}"
    logged = next(logs for logs in log_history(run) if logs["step"] == step and "eval_accuracy" in logs)
    figures = held_out(tuned)
    without_bias = {name: logged[f"{name}_without_bias"] for name in ("eval_accuracy", "eval_perplexity")}
    # E^T alone was scored by both.
    if not math.isclose(figures[0]["eval_perplexity"], without_bias["eval_perplexity"], rel_tol=1e-3):
        raise SystemExit(
            f"E^T alone of {checkpoint(run, step)} has a held-out perplexity of {without_bias['eval_perplexity']:.5g} in its "
            f"run and {figures[0]['eval_perplexity']:.5g} here: give --train_file, --validation_split_percentage, "
            "--max_eval_samples and --max_seq_length as the run had them, and another --output_dir."
        )
    for init, name in (("embeddings", f"alone_{step}"), ("prior", f"free_{step}")):
        if args.lambada_file and not (args.output_dir / name / "model.safetensors").is_file():
            free_head(checkpoint(run, step), args.output_dir / name, init)
    before = float(tokens_at(log_history(run), step))
    after = before + float(tokens_at(log_history(tuned), args.max_steps))
    places = ((ALONE, before, "alone", without_bias), (FREE, before, "free", held_out(run)[step]))
    models = [
        {"series": series, "step": step, "tokens": tokens, "folder": args.output_dir / f"{name}_{step}"} | found
        for series, tokens, name, found in places
    ]
    return [*models, {"series": TUNED, "step": step, "tokens": after, "folder": tuned} | figures[args.max_steps]]


def vanilla_model(args, step: int) -> dict:
    """The same of a checkpoint of the vanilla run."""
    folder = args.output_dir / f"vanilla_{step}"
    if args.lambada_file and not (folder / "model.safetensors").is_file():
        from_checkpoint(checkpoint(args.vanilla, step), folder)
    tokens = float(tokens_at(log_history(args.vanilla), step))
    return {"series": VANILLA, "step": step, "tokens": tokens, "folder": folder} | held_out(args.vanilla)[step]


def report(args, models: list[dict]) -> None:
    shown = [name for name in FIGURES if name in models[0]]
    table = [f"| model | pretraining steps | tokens (M) | {' | '.join(FIGURES[name] for name in shown)} |"]
    table.append("|" + "---|" * (3 + len(shown)))
    for model in models:
        cells = [f"{model[name]:.2%}" if "accuracy" in name else f"{model[name]:,.1f}" for name in shown]
        table.append(f"| {model['series']} | {model['step']:,} | {model['tokens'] / 1e6:.2f} | {' | '.join(cells)} |")
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))["tables"]["3"]["rows"]
    table += ["", "The paper's figures at the end of its pretraining (table 3):", ""]
    table += ["| model | LAMBADA accuracy | LAMBADA perplexity |", "|---|---|---|"]
    for name, row in published.items():
        accuracy, perplexity = (row[f"lambada_openai {metric}"] for metric in ("acc", "perplexity"))
        table.append(f"| {name} | {accuracy:.2f}% | {perplexity:,.1f} |")
    results = [{name: value for name, value in model.items() if name != "folder"} for model in models]
    folder = args.results_dir or args.output_dir / "along_training"
    runs = filter(None, (args.model_name_or_path, args.vanilla))
    write_results(folder, results, table, draw(models, shown), runs)


def draw(models: list[dict], shown: list[str]):
    figure, axes = plotting.subplots(1, len(shown), figsize=(4.5 * len(shown), 3.8))
    for axis, name in zip(axes, shown, strict=True):
        scale = 100 if "accuracy" in name else 1
        for series in (VANILLA, TUNED, FREE, ALONE):
            points = [(model["tokens"] / 1e6, scale * model[name]) for model in models if model["series"] == series]
            if points:
                axis.plot(*zip(*points, strict=True), "o-", ms=3, label=series)
        axis.set(xlabel="tokens seen (millions)", ylabel=FIGURES[name] + (" (%)" if scale > 1 else ""))
        if scale == 1:
            axis.set_yscale("log")
            plain_ticks(axis.yaxis)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    main()
