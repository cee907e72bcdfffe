#!/usr/bin/env python
"""Compare models with vocabularies of several sizes: figure 7 of arXiv 2309.08351.

    python studies/vocabulary_size.py --train_file corpus.txt.gz --output_dir runs/vocabulary_size
    python studies/vocabulary_size.py --task mlm --train_file corpus.txt.gz \\
        --output_dir runs/vocabulary_size \\
        --tasks sst2 stsb "--glue_flags=--data_dir data --max_train_samples 20000"

A byte-level BPE of each size is trained on the corpus, and each recipe is trained with each BPE.
As in the paper, all runs have the same number of steps and thus of tokens, so those with larger
vocabularies read more text.

Perplexities over different tokens cannot be compared, so all decoders score the same held-out
bytes: the first held-out documents, each followed by an end of text. The last token of a row is
also the first of the next, so that each token is predicted once, from those before it in its row.
Bits per byte are the nats of all these predictions over ln 2 and over the bytes of the texts,
where an end of text counts as one byte. Encoders are fine-tuned on --tasks, as in the paper; by
default the GLUE tasks in its average, which leaves out RTE, MRPC and COLA since they vary so much.
Fine-tuning uses the seed of the pretraining. p is that of Welch's test against the first recipe,
over pretrainings.

Speed is the time of all training steps; ``benchmarks/vocabulary.py`` measures single steps.
Finished runs are not repeated; interrupted ones resume. ``--report_only`` makes the table and the
picture from existing runs.
"""

import argparse
import itertools
import math
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import shared
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from headless_trainer.fine_tuning.results import read_run, run_path, scores_of
from headless_trainer.presentation.pictures import Panel, Series, draw_panels
from headless_trainer.presentation.significance import mean_test
from headless_trainer.presentation.tables import markdown

BITS = "bits per byte"
AVERAGE = "average"
# Flags of run_glue.py at --scale cpu. The other scales have the paper's settings.
CPU_FINE_TUNING = [
    "--num_train_epochs",
    "3",
    "--learning_rate",
    "1e-3",
    "--per_device_train_batch_size",
    "32",
]


def main(argv: list[str] | None = None) -> None:
    parser = shared.model_arguments(__doc__)
    parser.add_argument(
        "--vocab_sizes", nargs="+", type=int, default=[5_000, 15_000, 50_000], help="ascending"
    )
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        help="one for each recipe or for all; default: the scale's",
    )
    parser.add_argument(
        "--held_out_bytes",
        type=int,
        default=100_000,
        help="least number of bytes that decoders score",
    )
    tasks = ["mnli", "qqp", "qnli", "sst2", "stsb"]
    parser.add_argument(
        "--tasks", nargs="+", default=tasks, help="tasks for encoders, named as in run_glue.py"
    )
    parser.add_argument(
        "--loss", choices=["balanced", "cross_entropy"], default="balanced", help="of fine-tuning"
    )
    parser.add_argument(
        "--glue_flags", default="", help="further flags of run_glue.py: --glue_flags='...'"
    )
    parser.add_argument("--report_only", action="store_true")
    args = shared.at_scale(
        parser.parse_args(argv), evaluations=1, max_steps=100, learning_rate=8e-3
    )
    if "--loss" in args.glue_flags:
        parser.error(
            f"--glue_flags {args.glue_flags}: the table is of one loss: give it as --loss."
        )
    rates = args.rates or [args.settings["learning_rate"]]
    if len(rates) == 1:
        rates = rates * len(args.recipes)
    if len(rates) != len(args.recipes):
        parser.error(
            f"--rates: {len(rates)} for {len(args.recipes)} recipes: give one for each, or one "
            "for all."
        )
    for recipe in args.recipes:
        shared.flags_of(recipe)
    args.rates = dict(zip(args.recipes, rates, strict=True))
    runs = list(itertools.product(args.seeds, args.vocab_sizes, args.recipes))
    if not args.report_only:
        for size in args.vocab_sizes:
            shared.prepare(of_size(args, size))
        shared.mapped(args, lambda run: train(args, *run), runs)
    report(args, runs)


def train(args, seed: int, size: int, recipe: str) -> None:
    """Pretrain, and fine-tune an encoder that did not diverge, unless that was done before."""
    loss = shared.pretrain(of_size(args, size), recipe, args.rates[recipe], seed)
    if args.task == "clm" or not math.isfinite(loss):
        return
    folder = folder_of(args, seed, size, recipe)
    if args.scale == "cpu":
        flags = [*CPU_FINE_TUNING, "--loss", args.loss]
    else:
        flags = [f"paper_glue_{args.loss}"]
    flags += ["--model_name_or_path", str(folder), "--tasks", *args.tasks, "--seeds", str(seed)]
    flags += ["--output_dir", str(folder / "tasks"), *shlex.split(args.glue_flags)]
    subprocess.run([sys.executable, "run_glue.py", *flags], check=True)


def folder_of(args, seed: int, size: int, recipe: str) -> Path:
    """Return the folder of a pretraining."""
    return shared.run_dir(of_size(args, size), recipe, args.rates[recipe], seed)


def of_size(args, size: int) -> argparse.Namespace:
    """Return the study's arguments for one size of the vocabulary, with a tokenizer of that size
    and a folder of its own.
    """
    return shared.variant(args, f"vocabulary_{size}", vocab_size=size, tokenizer_name=None)


def report(args, runs: list[tuple[int, int, str]]) -> None:
    """Write the table and the picture of those runs that are finished.

    Args:
        args: the study's arguments.
        runs: seed, size of the vocabulary and recipe of each run.
    """
    documents = shared.held_out_documents(shared.data_arguments(args), args.held_out_bytes)
    # An end of text counts as one byte.
    scored_bytes = sum(len(text.encode()) + 1 for text in documents)
    folders = {}
    for seed, size, recipe in runs:
        folder = folder_of(args, seed, size, recipe)
        if all(path.is_file() for path in ends(args, seed, folder)):
            folders[seed, size, recipe] = folder
    rows = rows_of(args, folders, documents, scored_bytes)
    table = [table_of(args, rows) or "No run has finished."]
    if args.task == "clm":
        table.append(f"\nEvery model scored the same {scored_bytes:,} held-out bytes.")
    results_dir = args.results_dir or args.output_dir / "vocabulary_size"
    shared.write_results(
        results_dir, list(rows.values()), table, draw(args, rows), folders.values()
    )


def rows_of(
    args, folders: dict[tuple[int, int, str], Path], documents: list[str], scored_bytes: int
) -> dict[tuple[str, int], dict]:
    """Return the table's rows by recipe and size of the vocabulary.

    Args:
        args: the study's arguments.
        folders: those of the finished runs, by seed, size of the vocabulary and recipe.
        documents: what decoders score.
        scored_bytes: bytes of the documents, each with its end of text.

    Returns:
        Rows with the bytes of a token, the bytes of text that training read, and, of each
        pretraining, the seconds of training steps and the scores.
    """
    rows: dict[tuple[str, int], dict] = {}
    for (seed, size, recipe), folder in folders.items():
        ids = one_text(documents, AutoTokenizer.from_pretrained(folder))
        row = rows.setdefault(
            (recipe, size), {"recipe": recipe, "vocabulary": size, "scores": {}, "seconds": []}
        )
        row["bytes_per_token"] = scored_bytes / (len(ids) - 1)
        end = shared.held_out_points(folder)[-1]
        row["training_bytes"] = end["tokens_seen"] * row["bytes_per_token"]
        row["seconds"].append(end["seconds"])
        if args.task == "mlm":
            scores = scores_on_tasks(map(read_run, ends(args, seed, folder)))
        else:
            bits = nats(folder, ids, args.settings["max_seq_length"]) / math.log(2)
            scores = {BITS: bits / scored_bytes}
        for name, score in scores.items():
            row["scores"].setdefault(name, []).append(score)
    return rows


def table_of(args, rows: dict[tuple[str, int], dict]) -> str:
    """Return the table, which is empty without rows."""
    score_names = []
    if rows:
        score_names = list(next(iter(rows.values()))["scores"])
    cells = []
    for row in rows.values():
        facts = (
            row["recipe"],
            f"{row['vocabulary']:,}",
            f"{row['bytes_per_token']:.2f}",
            f"{row['training_bytes'] / 1e6:.2f}",
            len(row["seconds"]),
        )
        first = rows.get((args.recipes[0], row["vocabulary"]))
        scores = [cell(name, row["scores"], first) for name in score_names]
        cells.append((*facts, *scores, f"{statistics.mean(row['seconds']):,.0f}"))
    head = ["model", "vocabulary", "bytes a token", "text read (MB)", "seeds"]
    return markdown([*head, *score_names, "seconds"], cells)


def ends(args, seed: int, folder: Path) -> list[Path]:
    """Return what a finished run has: a decoder its held-out figures, an encoder the result of
    each fine-tuning.
    """
    if args.task == "clm":
        return [folder / "eval_results.json"]
    return [
        run_path(folder / "tasks", args.loss, folder.name, task, seed)
        for task in sorted(args.tasks)
    ]


def cell(name: str, scores: dict[str, list[float]], first: dict | None) -> str:
    """Return a recipe's mean score, its standard error and, with several pretrainings of it and of
    the first, p.
    """
    digits = 3 if name == BITS else 1
    text = shared.spread(scores[name], digits)
    if not first or first["scores"] is scores:
        return text
    scores_of_first = first["scores"][name]
    if min(len(scores_of_first), len(scores[name])) < 2:
        return text
    return f"{text}, p = {mean_test(scores_of_first, scores[name], paired=False):.2g}"


def scores_on_tasks(runs: Iterable[dict]) -> dict[str, float]:
    """Return the scores x 100 of a fine-tuned encoder on each task, and their average."""
    table = scores_of(runs).drop_duplicates("column")
    scores = dict(zip(table["column"], table["score"], strict=True))
    return scores | {AVERAGE: table["score"].mean()}


def one_text(documents: list[str], tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Return ``(N + 1,)`` ids of all documents, with an end of text after each and one before the
    first.
    """
    end = tokenizer.eos_token_id
    if end is None:
        end = tokenizer.sep_token_id
    text = [end]
    for ids in tokenizer(documents, add_special_tokens=False, verbose=False)["input_ids"]:
        text += [*ids, end]
    return torch.tensor(text)


@torch.no_grad()
def nats(folder: Path, ids: Tensor, length: int) -> float:
    """Return the summed cross-entropy of all ``(N + 1,)`` ids but the first, each predicted once,
    in rows of ``length``.
    """
    model = shared.language_model(folder)
    # The last token of a row is the first of the next, where it is not predicted again.
    rows = [ids[start : start + length] for start in range(0, len(ids) - 1, length - 1)]
    total = 0.0
    # All rows but the last have the same length, so they are one group.
    for _, rows_of_length in itertools.groupby(rows, len):
        for batch in torch.stack(list(rows_of_length)).split(4):  # (rows, T)
            logits = model(input_ids=batch).logits[:, :-1]  # (rows, T - 1, V)
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"
            )
            total += loss.item()
    return total


def draw(args, rows: dict[tuple[str, int], dict]):
    """Draw scores and seconds against the size of the vocabulary: the mean of each recipe, and
    every pretraining in grey.
    """
    if args.task == "clm":
        score = (BITS, "held-out bits per byte")
    else:
        score = (AVERAGE, "average over the tasks")
    panels = []
    for name, ylabel in (score, ("seconds", "seconds of training steps")):
        series = []
        for recipe in args.recipes:
            by_size = {}
            for (recipe_of_row, size), row in rows.items():
                if recipe_of_row == recipe:
                    by_size[size] = row["seconds"] if name == "seconds" else row["scores"][name]
            means = map(statistics.mean, by_size.values())
            series.append(Series(by_size, means, "o-", label=recipe))
            sizes = [size for size, values in by_size.items() for _ in values]
            values = itertools.chain.from_iterable(by_size.values())
            series.append(Series(sizes, list(values), ".", color="grey"))
        panels.append(Panel(series, xlabel="size of the vocabulary", ylabel=ylabel, xscale="log"))
    return draw_panels(panels, legend="first")


if __name__ == "__main__":
    main()
