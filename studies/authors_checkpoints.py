#!/usr/bin/env python
"""The checkpoints that the paper's authors released, scored by our commands, beside the paper's tables 1, 3 and 4.

    python studies/authors_checkpoints.py --output_dir runs/authors
    python studies/authors_checkpoints.py --output_dir runs/authors --tables 3 \
        --lm_eval_flags="--data_files lambada_openai=lambada.jsonl"

Models and data sets come from the Hub, or are named by the flags. No checkpoint has token counts of ours, and none is needed:

- The encoder's loss trained its trunk alone, so its masked-language-modelling head is left aside: run_glue.py fine-tunes the
  trunk under a new classifier, as the paper did (preset paper_glue_balanced).
- The head of the decoder was fine-tuned by the authors, and is scored as it is.
- The raw decoder was not fine-tuned. It is scored with the head that it was saved with, taken for the paper's, E^T alone. The
  free head would add log q, for which the counts are missing; ``headless-trainer lm-head --counts_from corpus`` takes them
  from texts.

What is scored already in the same ``--output_dir`` is not scored again. The rows of the paper's validation perplexity are not
published, so that figure has no counterpart. The cards of the checkpoints do not say after how many tokens they were saved:
the encoder is taken for that of the paper's last row.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

from shared import results_argument, without_folders, write_results

from headless_trainer.fine_tuning.results import average, read_runs, scores_by_column
from headless_trainer.scoring.score_store import folder_name

PUBLISHED = Path(__file__).with_name("published_paper.json")
ENCODER, DECODER, RAW = "headless, 8.2 B tokens", "headless, fine-tuned", "headless"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument("--encoder", default="nthngdy/headless-bert-bs64-owt2", help="of table 1")
    parser.add_argument("--decoder", default="nthngdy/headless-pythia-owt2-70m-ft", help="of tables 3 and 4")
    parser.add_argument(
        "--raw_decoder", default="nthngdy/headless-pythia-owt2-70m-raw", help="of table 3; '' to leave it out"
    )
    parser.add_argument("--tables", nargs="+", choices=["1", "3", "4"], default=["1", "3", "4"])
    parser.add_argument("--glue_flags", default="", help="one text of further flags of run_glue.py, after an = sign")
    parser.add_argument("--lm_eval_flags", default="", help="the same of run_lm_eval.py")
    results_argument(parser)
    args = parser.parse_args(argv)
    rows = glue(args) if "1" in args.tables else []
    if {"3", "4"} & {*args.tables}:
        rows += zero_shot(args)
    write_results(args.results_dir or args.output_dir / "authors_checkpoints", rows, table(rows))


def compared(number: str, paper_row: str, model: str, found: dict[str, tuple[float, float | None]]) -> list[dict]:
    """Rows of a table of the paper: its figures and ours, with their standard errors, where we have them."""
    paper = json.loads(PUBLISHED.read_text(encoding="utf-8"))["tables"][number]["rows"][paper_row]
    rows = []
    for name, published in paper.items():
        ours, error = found.get(name, (None, None))
        row = {"table": number, "model": without_folders(model), "figure": name, "ours": ours, "standard error": error}
        row |= {"paper": published, "difference": None if ours is None else ours - published}
        rows.append(row)
    return rows


def run(script: str, flags: list[str]) -> None:
    subprocess.run([sys.executable, script, *flags], check=True)


def glue(args) -> list[dict]:
    """Table 1: the encoder fine-tuned on each task."""
    folder = args.output_dir / f"glue_{folder_name(args.encoder)}"
    flags = ["paper_glue_balanced", "--model_name_or_path", args.encoder, "--output_dir", str(folder)]
    run("run_glue.py", [*flags, *shlex.split(args.glue_flags)])
    scores = {task: values for (_, task), values in scores_by_column(read_runs(folder)).items()}
    found = {}
    for task, values in scores.items():
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        found[task] = (statistics.fmean(values), error)
    rows = compared("1", ENCODER, args.encoder, found)
    tasks = [row["figure"] for row in rows if row["figure"] != "average"]
    if found.keys() >= {*tasks}:  # of other tasks there is no average to compare
        mean, error, _ = average([scores[task] for task in tasks])
        rows = compared("1", ENCODER, args.encoder, found | {"average": (mean, None if error != error else error)})
    return rows


def zero_shot(args) -> list[dict]:
    """Tables 3 and 4: the decoders without training."""
    models = [args.decoder, *([args.raw_decoder] if args.raw_decoder and "3" in args.tables else [])]
    tasks = "paper" if "4" in args.tables else "lambada_openai"
    folder = args.output_dir / "zero_shot"
    flags = ["--model_name_or_path", *models, "--tasks", tasks, "--output_dir", str(folder)]
    run("run_lm_eval.py", [*flags, *shlex.split(args.lm_eval_flags)])
    rows = []
    for number in ("3", "4"):
        for model, paper_row in zip(models, (DECODER, RAW), strict=False):
            if number in args.tables and (number, paper_row) != ("4", RAW):
                found = harness_scores(folder / folder_name(model) / "results.json")
                rows += compared(number, paper_row, model, found)
    return rows


def harness_scores(path: Path) -> dict[str, tuple[float, float | None]]:
    """Value and standard error of each task's metrics, in percent but for perplexities."""
    found = {}
    for task, entry in json.loads(path.read_text())["tasks"].items():
        for metric, score in entry["metrics"].items():
            name = metric.removesuffix(",none")
            # Of these figures only shares of documents are percentages in the paper.
            scale = 1 if name == "perplexity" else 100
            error = score["stderr"]
            found[f"{task} {name}"] = (scale * score["value"], None if error is None else scale * error)
    return found


def table(rows: list[dict]) -> list[str]:
    lines = ["| table | model | figure | ours (standard error) | paper | difference |", "|---|---|---|---|---|---|"]
    for row in rows:
        ours, difference = "not scored", ""
        if row["ours"] is not None:
            error = "" if row["standard error"] is None else f" ({row['standard error']:.2f})"
            ours, difference = f"{row['ours']:.2f}{error}", f"{row['difference']:+.2f}"
        lines.append(
            f"| {row['table']} | {row['model']} | {row['figure']} | {ours} | {row['paper']:g} | {difference} |"
        )
    return lines


if __name__ == "__main__":
    main()
