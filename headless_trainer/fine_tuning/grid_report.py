"""The report of a folder of fine-tuning results: tables for each loss and benchmark, calibration, pictures."""

import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..runtime.checkpoints import write_whole
from ..tables import markdown
from .grid_plots import draw_pretraining
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
    read_run,
    read_runs,
    scores_by_column,
    selection_score,
    shown,
)
from .score_tables import calibration_table, score_table

REPORT_NAME = "results.md"
CALIBRATION_NOTE = "Expected calibration error x 100 (15 bins), mean over seeds; 0 is best."
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
        for name, slug, group in benchmarks([run for run in runs if run["loss"] == loss]):
            parts += [f"## {name}: {title.lower()}", benchmark_table(group, metrics), note(group, metrics)]
            picture = output_dir / f"{slug}_{loss}_pretraining.png"
            if draw_pretraining(group, picture, metrics):
                parts.append(f"![{name}: average score along pretraining]({picture.name})")
    if table := calibration_table(runs, metrics):
        parts += ["## Calibration", table, CALIBRATION_NOTE]
    if table := test_table(output_dir):
        parts += ["## Test rows", table, TEST_NOTE]
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
    if own := [run for run in runs if run["task"].startswith("xnli_")]:
        # Fine-tuning on English and scoring English is part of both scenarios, and run once.
        for run in everywhere:
            language = run["train_language"]
            if language in run["selected_on"]:
                own.append(run | {"epochs": [e | {"sets": {language: e["sets"][language]}} for e in run["epochs"]]})
        yield "XNLI, fine-tuned on the target language", "xnli_translate_train", own


def benchmark_table(runs: list[dict], metrics: str = "paper") -> str:
    """A row for each model, with its pretraining where any is known, and a column for each task or language."""
    pretraining = {run["model"]: run.get("pretraining") or {} for run in runs}
    models = sorted(
        pretraining, key=lambda name: (pretraining[name].get("run", name), pretraining[name].get("tokens_seen", 0))
    )
    rows, first = {model: [model] for model in models}, ["model"]
    if any(pretraining.values()):
        rows = {model: [model, *_pretraining_cells(pretraining[model])] for model in models}
        first = ["model", "tokens", "process-hours"]
    if runs[0]["benchmark"] == OWN_TASK:
        scores = _own_scores(runs)
        columns = list(dict.fromkeys(column for _, column in scores))
        lower = {metric for run in runs if run.get("lower_is_better") for metric in run["paper_metrics"]}
        names = {column: metric_title(column) for column in columns}
        return score_table(rows, columns, scores, first, names=names, averaged=False, lower=lower)
    scores = scores_by_column(runs, metrics)
    return score_table(rows, in_order({column for _, column in scores}), scores, first)


def _pretraining_cells(known: dict) -> list[str]:
    """Tokens and process-hours of pretraining, dashes where the checkpoint does not say."""
    if "tokens_seen" not in known:
        return ["-", "-"]
    scale, unit = (1e9, "B") if known["tokens_seen"] >= 1e9 else (1e6, "M")
    hours = known["train_seconds"] * known.get("processes", 1) / 3600
    return [f"{known['tokens_seen'] / scale:.3g} {unit}", f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"]


def _own_scores(runs: list[dict]) -> dict[tuple[str, str], list[float]]:
    """Scores of one's own task by (model, metric): its metric, and macro F1 where that is another."""
    scores: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        (scored,) = run["epochs"][best_epoch(run)]["sets"].values()
        (metric,) = run["paper_metrics"]
        scores.setdefault((run["model"], metric), []).append(shown(run, scored["metrics"][metric]))
        if "macro_f1" in scored["metrics"] and metric != "macro_f1":
            scores.setdefault((run["model"], "macro_f1"), []).append(100 * scored["metrics"]["macro_f1"])
    return scores


def test_table(output_dir: Path) -> str | None:
    """Scores of predicted rows that have labels, by the best model of each that was fine-tuned; None where there are none."""
    found = [read_run(path) for path in sorted(output_dir.glob(f"{PREDICTIONS}/*{SCORES}"))]
    names = list(dict.fromkeys(name for each in found for name in each["metrics"]))
    lines = []
    for each in found:
        values = {name: shown(each if name == each["metric"] else {}, value) for name, value in each["metrics"].items()}
        cells = [f"{values[name]:.4g}" if name in values else "-" for name in names]
        lines.append([each["model"], f"{each['rows']:,}", *cells])
    return markdown(["model", "rows", *map(metric_title, names)], lines, left=1)


def note(runs: list[dict], metrics: str = "paper") -> str:
    """How the scores of a table were chosen and what its marks mean."""
    lower = runs[0].get("lower_is_better")
    seeds = set(Counter((run["model"], run["task"]) for run in runs).values())
    spread, significance = " of one seed each", ""
    if max(seeds) > 1:
        number = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else max(seeds)
        averaged = "" if runs[0]["benchmark"] == OWN_TASK else "; the average has its standard error"
        spread = f", mean ± standard deviation over {number} seeds{averaged}"
        significance = (
            " †: significantly better than the second best (two-sided t-test over seeds, level 0.95); ††: also after Holm's "
            "correction over the columns."
        )
    chosen, epochs = "Each is that after one epoch.", max(len(run["epochs"]) for run in runs)
    if epochs > 1:
        lag = statistics.fmean(_lag(run, metrics) for run in runs)
        chosen = f"Each is the best of {epochs} epochs on the set that is scored; the last epoch is {lag:.2f} "
        chosen += f"{'higher' if lower else 'lower'} on average."
    rates, searched = "", {run["model"]: run["learning_rate_search"] for run in runs if "learning_rate_search" in run}
    if searched:
        tried = ", ".join(next(iter(searched.values()))["scores"])
        best = ", ".join(f"{model} {search['chosen']:g}" for model, search in searched.items())
        rates = f" Learning rates that the same rows chose of {tried}: {best}."
    return (
        f"Scores{'' if lower else ' x 100'} ({_measured(runs, metrics)}){spread}. {chosen} Bold: best. Underlined: second best."
        f"{significance}{rates}"
    )


def _measured(runs: list[dict], metrics: str) -> str:
    """Which metrics the scores are, and of which tasks: ``accuracy: SST2; Spearman's correlation: STS-B``."""
    names = {column_of(run, ""): run[f"{metrics}_metrics"] for run in runs}
    groups: dict[str, list[str]] = {}
    for task in in_order(names):
        groups.setdefault(" and ".join(map(metric_title, names[task])), []).append(TASK_NAMES.get(task, task))
    if runs[0]["benchmark"] == OWN_TASK:
        return next(iter(groups)) + ", of which the lowest is the best" * bool(runs[0].get("lower_is_better"))
    return "; ".join(f"{metric}: {', '.join(tasks)}" if any(tasks) else metric for metric, tasks in groups.items())


def _lag(run: dict, metrics: str) -> float:
    scores = [selection_score(run, epoch, metrics) for epoch in run["epochs"]]
    return abs(shown(run, scores[best_epoch(run, metrics)] - scores[-1]))
