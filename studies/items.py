#!/usr/bin/env python
"""Rankings of a catalogue, each way of training at its own best setting, beside what others have published.

    python studies/items.py --train_file Beauty.txt.gz Toys_and_Games.txt.gz --output_dir runs/items

Every file is a data set of its own. For each method the first seed tries every setting of the grid (--num_hidden_layers,
--learning_rate, --dropout); the one with the best NDCG@10 on validation is trained with the other seeds, and the test is read
at that setting alone. Flags that are not listed here are given to every run of run_items.py. Runs that are finished are not
repeated, those cut off go on. ``--report_only`` makes the tables of what is there.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared import as_flags, results_argument, results_of, spread, write_results

from headless_trainer.runtime import plotting

METHODS = {
    "headless": ["--sampled_negatives", "0"],
    "headless, 4,096 uniform": ["--sampled_negatives", "4096"],
    "headless, 4,096 by frequency": ["--sampled_negatives", "4096", "--sampling_power", "1"],
    # The exact steps are the last ones of a run, so it must come to its end.
    "headless, exact at the end": [
        *("--sampled_negatives", "0", "--softmax_share", "0.4", "--num_train_epochs", "26"),
        *("--early_stopping_patience", "0"),
    ],
    "full softmax": ["--objective", "vanilla"],
}
GRID = {"num_hidden_layers": [1, 2], "learning_rate": [5e-4, 1e-3, 2e-3], "dropout": [0.3, 0.5]}
COLUMNS = (
    *("method", "layers, rate, dropout (best of)", "seeds", "tau", "validation NDCG@10", "test NDCG@10, recall@10"),
    *("at tau 0", "coverage", "epochs", "s an epoch", "peak MiB"),
)
PUBLISHED = Path(__file__).with_name("published_items.json")
RESULTS_NAME = "items_results.json"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--train_file", nargs="+", required=True, type=Path, help="a data set each, as for run_items.py"
    )
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    for name, values in GRID.items():
        parser.add_argument(f"--{name}", nargs="+", type=type(values[0]), default=values, help="the grid")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on its share of the cores")
    parser.add_argument("--report_only", action="store_true")
    results_argument(parser)
    args, args.flags = parser.parse_known_args(argv)
    if not args.report_only:
        for data in args.train_file:
            check_flags(args, data)
        tasks = itertools.product(args.train_file, args.methods)
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda task: search(args, *task), tasks))
    for data in args.train_file:
        report(args, data)


def check_flags(args, data: Path) -> None:
    """Refuse to mix runs of different flags in one table."""
    path = args.output_dir / name_of(data) / "flags.json"
    if path.is_file() and (flags := json.loads(path.read_text())) != args.flags:
        raise SystemExit(
            f"{path.parent} holds runs with the flags {flags}, not {args.flags}: choose another --output_dir."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(args.flags))


def name_of(data: Path) -> str:
    return data.name.partition(".")[0]


def run_dir(args, data: Path, method: str, setting: tuple, seed: int) -> Path:
    slug = "".join(letter if letter.isalnum() else "_" for letter in method)
    return args.output_dir / name_of(data) / slug / "_".join(f"{value:g}" for value in (*setting, seed))


def settings_of(args) -> list[tuple]:
    return list(itertools.product(*(getattr(args, name) for name in GRID)))


def search(args, data: Path, method: str) -> None:
    """The grid at the first seed, then the other seeds at the setting with the best validation."""
    found = {setting: train(args, data, method, setting, args.seeds[0]) for setting in settings_of(args)}
    best = best_setting(found)
    for seed in args.seeds[1:] if best else ():
        train(args, data, method, best, seed)


def train(args, data: Path, method: str, setting: tuple, seed: int) -> dict | None:
    folder = run_dir(args, data, method, setting, seed)
    flags = dict(zip(GRID, setting, strict=True)) | {"train_file": data, "output_dir": folder, "seed": seed}
    # Two heads are those of the default width; one layer with one head is what others publish.
    flags |= {"num_attention_heads": flags["num_hidden_layers"], "disable_tqdm": "true"}
    command = [sys.executable, "run_items.py", *as_flags(flags), *METHODS[method], *args.flags]
    return results_of(command, folder, RESULTS_NAME, args.jobs)


def best_setting(found: dict[tuple, dict | None]) -> tuple | None:
    """The one with the best NDCG@10 on validation; None if every run diverged."""
    scores = {setting: result["validation_ndcg@10"] for setting, result in found.items() if result is not None}
    return max(scores, key=scores.get, default=None)


def finished(args, data: Path, method: str, setting: tuple) -> dict[int, dict]:
    """Results of the runs of one setting that came to their end, by seed."""
    paths = {seed: run_dir(args, data, method, setting, seed) / RESULTS_NAME for seed in args.seeds}
    return {seed: json.loads(path.read_text()) for seed, path in paths.items() if path.is_file()}


def report(args, data: Path) -> None:
    """Table and results of one data set, for the methods that have runs, each at its best setting."""
    rows, folders = {}, []
    for method in args.methods:
        runs = {setting: finished(args, data, method, setting) for setting in settings_of(args)}
        tried = {setting: by_seed.get(args.seeds[0]) for setting, by_seed in runs.items()}
        best = best_setting(tried)
        if best is not None:
            scores = {setting: result["validation_ndcg@10"] for setting, result in tried.items() if result}
            named = [
                {**dict(zip(GRID, each, strict=True)), "validation_ndcg@10": score} for each, score in scores.items()
            ]
            rows[method] = {"setting": dict(zip(GRID, best, strict=True)), "tried": named, "seeds": runs[best]}
            folders += [run_dir(args, data, method, best, seed) for seed in runs[best]]
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    others = published["rows"].get(name_of(data), [])
    table = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    table += [table_row(method, row) for method, row in rows.items()]
    for row in others:
        figures = f"{row['ndcg@10']:.4f}, {row['recall@10']:.4f}"
        table.append(f"| {row['method']} ({row['source']}) | | | | | {figures} | | | | | |")
    table += ["", *(f"{name}: {source}." for name, source in published["sources"].items())] if others else []
    table.append(f"\nData set: {name_of(data)}.")
    write_results((args.results_dir or args.output_dir) / name_of(data), rows, table, draw(rows, others), folders)


def draw(rows: dict, others: list[dict]):
    """NDCG@10 on the test: of each method all seeds and their mean, and what others have published."""
    ours = {method: [result["test_ndcg@10"] for result in row["seeds"].values()] for method, row in rows.items()}
    names = [*ours, *(f"{row['method']} ({row['source']})" for row in others)]
    figure, axis = plotting.subplots(figsize=(8, 1 + 0.3 * len(names)))
    for place, values in enumerate(ours.values()):
        axis.plot(values, [place] * len(values), ".", color="grey")
        axis.plot(statistics.mean(values), place, "o", color="C0")
    axis.plot([row["ndcg@10"] for row in others], range(len(ours), len(names)), "o", color="C1", mfc="none")
    axis.set(xlabel="test NDCG@10", yticks=range(len(names)), yticklabels=names)
    axis.invert_yaxis()
    return figure


def table_row(method: str, row: dict) -> str:
    found = list(row["seeds"].values())

    def shown(name: str, digits: int) -> str:
        return spread([result[name] for result in found], digits)

    paces = [result["train_seconds"] / result["epochs"] for result in found]
    peaks = [result["peak_memory_mib"] for result in found]
    cells = [
        method,
        f"{', '.join(f'{value:g}' for value in row['setting'].values())} ({len(row['tried'])})",
        len(found),
        shown("tau", 2),
        shown("validation_ndcg@10", 4),
        f"{shown('test_ndcg@10', 4)}, {shown('test_recall@10', 4)}",
        f"{shown('test_ndcg@10_at_tau_0', 4)}, {shown('test_recall@10_at_tau_0', 4)}",
        f"{statistics.mean(result['test_coverage@10'] for result in found):.0%}",
        shown("epochs", 1),
        spread(paces, 1),
        f"{math.ceil(max(peaks)):,}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
