"""The report of a folder of fine-tuning results: tables for each loss and benchmark, calibration, pictures."""

import json
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..cards.file import table as cards_table
from ..runtime.checkpoints import write_whole
from .grid_plots import draw_pretraining, draw_reliability
from .problems import LOSS_TITLES
from .results import (
    BENCHMARK_NAMES,
    OWN_TASK,
    PREDICTIONS,
    SCORES,
    TASK_NAMES,
    best_epoch,
    column_of,
    in_order,
    read_runs,
    scores_by_column,
    selection_score,
    shown,
)
from .score_tables import calibration_table, pretraining_cells, score_table

REPORT_NAME = "results.md"
TEST_NOTE = (
    "Rows that had no part in the choice of an epoch, a seed or a rate, by the model that was chosen. Scores x 100, losses as "
    "they are."
)
METRIC_NAMES = {
    "matthews_correlation": "Matthews' correlation", "spearmanr": "Spearman's correlation", "pearsonr": "Pearson's correlation",
    "f1": "F1", "macro_f1": "macro F1",
}  # fmt: skip


def metric_title(name: str) -> str:
    """What tables and cards call a metric."""
    return METRIC_NAMES.get(name, name.replace("_", " "))


def write_report(output_dir: str | Path, metrics: str = "paper") -> str:
    """Write ``results.md`` and its pictures beside the results of a folder, and return its text.

    Raises:
        ValueError: if the folder holds no result.
    """
    output_dir = Path(output_dir)
    runs = read_runs(output_dir)
    if not runs:
        raise ValueError(f"output_dir {str(output_dir)!r} holds no results (<loss>/<model>/<task>/seed_<s>.json).")
    parts = ["# Fine-tuning results"]
    for loss, title in LOSS_TITLES.items():
        own = [run for run in runs if run["loss"] == loss]
        for name, slug, group in benchmarks(own):
            parts += [f"## {name}: {title.lower()}", benchmark_table(group, metrics), note(group, metrics)]
            picture = output_dir / f"{slug}_{loss}_pretraining.png"
            if draw_pretraining(group, picture, metrics):
                parts.append(f"![{name}: average score along pretraining]({picture.name})")
    if table := calibration_table(runs, metrics):
        explained = (
            "Expected calibration error x 100 (15 bins), mean over seeds; 0 is best. A point of the picture is a bin, its size "
            "the share of the rows."
        )
        parts += ["## Calibration", table, explained]
        if draw_reliability(runs, output_dir / "reliability.png", metrics):
            parts.append("![Accuracy against confidence](reliability.png)")
    if table := test_table(output_dir):
        parts += [
            "## Test rows",
            table,
            TEST_NOTE,
        ]
    text = "\n\n".join(parts) + "\n"
    write_whole(output_dir / REPORT_NAME, text.encode())
    return text


def benchmarks(runs: list[dict]) -> Iterator[tuple[str, str, list[dict]]]:
    """Title, file name and runs of each table."""
    for benchmark in dict.fromkeys([*BENCHMARK_NAMES, *(run["benchmark"] for run in runs)]):
        if benchmark != "xnli" and (own := [run for run in runs if run["benchmark"] == benchmark]):
            label = own[0]["task"] if benchmark == OWN_TASK else benchmark
            yield BENCHMARK_NAMES.get(label, label), benchmark, own
    everywhere = [run for run in runs if run["task"] == "xnli"]
    if everywhere:
        yield "XNLI, fine-tuned on English only", "xnli", everywhere
    own = [run for run in runs if run["task"].startswith("xnli_")]
    if own:
        # Fine-tuning on English and scoring English is part of both scenarios, and run once.
        shared = [_in_training_language(run) for run in everywhere if run["train_language"] in run["selected_on"]]
        yield "XNLI, fine-tuned on the target language", "xnli_translate_train", own + shared


def _in_training_language(run: dict) -> dict:
    language = run["train_language"]
    epochs = [epoch | {"sets": {language: epoch["sets"][language]}} for epoch in run["epochs"]]
    return run | {"epochs": epochs}


def benchmark_table(runs: list[dict], metrics: str = "paper") -> str:
    """A row for each model, with its pretraining where any is known, and a column for each task or language."""
    models = {run["model"]: run for run in runs}

    def place(model: str) -> tuple:
        known = models[model].get("pretraining") or {"run": model, "tokens_seen": 0}
        return known["run"], known["tokens_seen"]

    with_pretraining = any(run.get("pretraining") for run in runs)
    rows = {}
    for model in sorted(models, key=place):
        rows[model] = [model, *(pretraining_cells(models[model]) if with_pretraining else ())]
    first = ["model", "tokens", "process-hours"] if with_pretraining else ["model"]
    if runs[0]["benchmark"] == OWN_TASK:
        scores, lower = own_scores(runs)
        columns = list(dict.fromkeys(column for _, column in scores))
        names = {column: metric_title(column) for column in columns}
        return score_table(rows, columns, scores, first, names=names, averaged=False, lower=lower)
    scores = scores_by_column(runs, metrics)
    return score_table(rows, in_order({column for _, column in scores}), scores, first)


def test_table(output_dir: Path) -> str | None:
    """Scores of predicted rows that have labels, by the best model of each that was fine-tuned; None where there are none."""
    found = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(output_dir.glob(f"{PREDICTIONS}/*{SCORES}"))
    ]
    if not found:
        return None
    names = list(dict.fromkeys(name for each in found for name in each["metrics"]))
    lines = []
    for each in found:
        values = {name: 100 * value for name, value in each["metrics"].items()}
        values[each["metric"]] = shown(each, each["metrics"][each["metric"]])
        lines.append(
            [each["model"], f"{each['rows']:,}", *(f"{values[name]:.4g}" if name in values else "-" for name in names)]
        )
    return cards_table(["model", "rows", *map(metric_title, names)], lines, left=1)


def own_scores(runs: list[dict]) -> tuple[dict[tuple[str, str], list[float]], set[str]]:
    """Scores of one's own task by (model, metric), its metric and that over classes; which of them are the better the lower."""
    scores: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        (scored,) = run["epochs"][best_epoch(run)]["sets"].values()
        (metric,) = run["paper_metrics"]
        scores.setdefault((run["model"], metric), []).append(shown(run, scored["metrics"][metric]))
        if "macro_f1" in scored["metrics"] and metric != "macro_f1":
            scores.setdefault((run["model"], "macro_f1"), []).append(100 * scored["metrics"]["macro_f1"])
    return scores, {metric for run in runs if run.get("lower_is_better") for metric in run["paper_metrics"]}


def note(runs: list[dict], metrics: str = "paper") -> str:
    """How the scores of a table were chosen and what its marks mean."""
    epochs = max(len(run["epochs"]) for run in runs)
    seeds = Counter((run["model"], run["task"]) for run in runs)
    number = f"{min(seeds.values())} to {max(seeds.values())}" if len(set(seeds.values())) > 1 else max(seeds.values())
    names = {column_of(run, ""): run[f"{metrics}_metrics"] for run in runs}
    names = {task: names[task] for task in in_order(names)}
    groups: dict[str, list[str]] = {}
    for task, own in names.items():
        groups.setdefault(" and ".join(metric_title(metric) for metric in own), []).append(TASK_NAMES.get(task, task))
    measured = "; ".join(
        f"{metric}: {', '.join(filter(None, tasks))}" if any(tasks) else metric for metric, tasks in groups.items()
    )
    lower, average = runs[0].get("lower_is_better"), "; the average has its standard error"
    if runs[0]["benchmark"] == OWN_TASK:
        measured, average = next(iter(groups)) + (", of which the lowest is the best" if lower else ""), ""
    lag = statistics.fmean(_lag(run, metrics) for run in runs)
    searched = {run["model"]: run["learning_rate_search"] for run in runs if "learning_rate_search" in run}
    rates = ""
    if searched:
        tried = ", ".join(next(iter(searched.values()))["scores"])
        best = ", ".join(f"{model} {search['chosen']:g}" for model, search in searched.items())
        rates = f" Learning rates that the same rows chose of {tried}: {best}."
    spread, significance = " of one seed each", ""
    if max(seeds.values()) > 1:
        spread = f", mean ± standard deviation over {number} seeds{average}"
        significance = (
            " †: significantly better than the second best (two-sided t-test over seeds, level 0.95); ††: also after Holm's "
            "correction over the columns."
        )
    chosen = "Each is that after one epoch."
    if epochs > 1:
        chosen = f"Each is the best of {epochs} epochs on the set that is scored; the last epoch is {lag:.2f} "
        chosen += f"{'higher' if lower else 'lower'} on average."
    return (
        f"Scores{'' if lower else ' x 100'} ({measured}){spread}. {chosen} Bold: best. Underlined: second best."
        f"{significance}{rates}"
    )


def _lag(run: dict, metrics: str) -> float:
    scores = [selection_score(run, epoch, metrics) for epoch in run["epochs"]]
    return abs(shown(run, scores[best_epoch(run, metrics)] - scores[-1]))
