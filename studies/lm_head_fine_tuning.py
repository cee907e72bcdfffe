#!/usr/bin/env python
"""How many steps of fine-tuning the free head is worth: both ways to start a head, scored along their fine-tuning.

    python studies/lm_head_fine_tuning.py --model_name_or_path runs/study/clm_headless_0 --train_file corpus.txt.gz \
        --output_dir runs/head --others "vanilla=runs/study/clm_vanilla_tied_0" --lambada_file lambada.jsonl

Fine-tunes a headless decoder twice, its head starting at E^T + log q (the free head) and at E^T alone (the paper's way,
section 4.2), on other rows of its corpus than it was pretrained on, in batches of 16 x 128 tokens at the paper's learning
rate. Held-out perplexity and accuracy come from the run itself, at step 0 and every --eval_steps; with --lambada_file, the
models at --scored_steps and the runs under --others are scored on LAMBADA by the LM Evaluation Harness. Runs and
scores that are there are not repeated. """

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared import (
    free_head,
    from_checkpoint,
    held_out,
    plain_ticks,
    results_argument,
    score_lambada,
    tune_head,
    write_results,
)

from headless_trainer.runtime import plotting

LABELS = {"prior": "tuned from the free head", "embeddings": "tuned from E^T, as the paper does"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="headless decoder that run_pretrain.py wrote")
    parser.add_argument("--train_file", nargs="+", help="the corpus; the documentation on this machine by default")
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument("--max_steps", type=int, default=1000)
    parser.add_argument("--eval_steps", type=int, default=50)
    parser.add_argument("--scored_steps", type=int, nargs="+", default=[0, 50, 200, 1000])
    parser.add_argument("--learning_rate", default="1e-4")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on its share of the cores")
    parser.add_argument(
        "--others",
        nargs="+",
        default=[],
        metavar="NAME=RUN[@STEP]",
        help="runs of run_pretrain.py to set beside them, at their end or at the checkpoint of a step",
    )
    parser.add_argument("--lambada_file", type=Path, help="LAMBADA documents, one JSON object with 'text' a line")
    parser.add_argument("--max_length", default="128", help="longest input on LAMBADA: that of the training rows")
    results_argument(parser)
    args = parser.parse_args()
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda init: fine_tune(args, init), LABELS))
    tuned = [tuned_model(args, init, step) for init in LABELS for step in args.scored_steps]
    models = tuned + [other_model(args, *text.partition("=")[::2]) for text in args.others]
    if args.lambada_file:
        score_lambada(models, args.lambada_file, args.output_dir / "lambada", args.max_length)
    report(args, models)


def fine_tune(args, init: str) -> None:
    steps = {"max_steps": args.max_steps, "eval_steps": args.eval_steps, "save_steps": args.eval_steps}
    settings = steps | {"learning_rate": args.learning_rate, "validation_split_percentage": 1, "max_eval_samples": 200}
    tune_head(args.model_name_or_path, args.output_dir / init, init, args.train_file, args.jobs, settings)


def tuned_model(args, init: str, step: int) -> dict:
    """Label, folder of an ordinary language model, and held-out figures after some steps of a fine-tuning."""
    folder = args.output_dir / f"{init}_{step}"
    if not (folder / "model.safetensors").is_file():
        if step == 0:
            free_head(args.model_name_or_path, folder, init)
        else:
            from_checkpoint(args.output_dir / init / f"checkpoint-{step}", folder)
    label = f"{LABELS[init]}, {step:,} steps" if step else {"prior": "free head", "embeddings": "E^T alone"}[init]
    return {"label": label, "folder": folder} | held_out(args.output_dir / init)[step]


def other_model(args, name: str, spec: str) -> dict:
    """The same of another run, at its end or at a step."""
    run, _, step = spec.partition("@")
    figures = held_out(Path(run))
    if not step and json.loads(Path(run, "config.json").read_text())["architectures"][0].endswith("LMHeadModel"):
        return {"label": name, "folder": Path(run)} | figures[max(figures)]
    folder = args.output_dir / name.replace(" ", "_").replace(",", "")
    if not (folder / "model.safetensors").is_file():
        from_checkpoint(Path(run, f"checkpoint-{step}"), folder) if step else free_head(run, folder, "prior")
    return {"label": name, "folder": folder} | figures[int(step or max(figures))]


def steps_worth(args) -> int | None:
    """Steps of fine-tuning from E^T until its held-out perplexity is that of the free head before any."""
    free = held_out(args.output_dir / "prior")[0]["eval_perplexity"]
    tuned = held_out(args.output_dir / "embeddings")
    return next((step for step in sorted(tuned) if tuned[step]["eval_perplexity"] <= free), None)


def report(args, models: list[dict]) -> None:
    lambada = args.lambada_file is not None
    rows = ["| model | held-out accuracy | perplexity |" + (" LAMBADA accuracy | perplexity |" if lambada else "")]
    rows.append("|---|---|---|" + ("---|---|" if lambada else ""))
    for model in models:
        row = f"| {model['label']} | {model['eval_accuracy']:.1%} | {model['eval_perplexity']:,.0f} |"
        rows.append(
            row + (f" {model['lambada_accuracy']:.2%} | {model['lambada_perplexity']:,.0f} |" if lambada else "")
        )
    worth = steps_worth(args)
    reached = f"after {worth:,} steps" if worth is not None else f"not within {args.max_steps:,} steps"
    rows.append(f"\nFine-tuning from E^T reaches the held-out perplexity of the free head {reached}.")
    results = {"models": [{name: value for name, value in model.items() if name != "folder"} for model in models]}
    results |= {"steps_worth": worth, "held_out": {init: held_out(args.output_dir / init) for init in LABELS}}
    runs = [Path(run.partition("=")[2].partition("@")[0]) for run in args.others]
    folder = args.results_dir or args.output_dir / "results"
    write_results(folder, results, rows, draw(args, models, lambada), [Path(args.model_name_or_path), *runs])


def draw(args, models: list[dict], lambada: bool):
    figure, axes = plotting.subplots(1, 1 + lambada, figsize=(5 + 4.5 * lambada, 4), squeeze=False)
    panels = [(axes[0, 0], "eval_perplexity", "held-out perplexity")]
    panels += [(axes[0, 1], "lambada_perplexity", "LAMBADA perplexity")] if lambada else []
    scored = len(args.scored_steps)
    for axis, name, title in panels:
        for index, init in enumerate(LABELS):
            if name == "eval_perplexity":
                points = [(step, figures[name]) for step, figures in sorted(held_out(args.output_dir / init).items())]
            else:
                own = models[index * scored : (index + 1) * scored]
                points = [(step, model[name]) for step, model in zip(args.scored_steps, own, strict=True)]
            axis.plot(*zip(*points, strict=True), "o-", ms=3, label=LABELS[init])
        for index, model in enumerate(models[len(LABELS) * scored :]):
            axis.axhline(
                model[name], ls=("--", ":", "-.")[index % 3], lw=1, color=f"C{2 + index}", label=model["label"]
            )
        axis.set(xlabel="steps of fine-tuning", title=title, yscale="log")
        plain_ticks(axis.yaxis)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncol=2, fontsize=8
    )
    return figure


if __name__ == "__main__":
    main()
