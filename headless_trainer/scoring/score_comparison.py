"""Tables of zero-shot scores, and the comparison of two models document by document."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from ..significance import dagger, holm, paired_bootstrap, show_p, t_test
from .score_store import RESULTS_NAME, read_documents, read_results

CONSOLE_WIDTH = 100
# How a metric follows from the scores of its documents: their mean, or a rising (+1) or falling (-1) function of it. Others,
# such as F1, are not functions of a mean, and the tests do not apply to them.
FUNCTIONS_OF_A_MEAN = {"mean": 1, "perplexity": -1}


def find_results(folder: str | Path) -> Path | None:
    """Folder of one model's results: the folder itself, or the only one in it; None if there is none.

    Raises:
        ValueError: if it holds the results of several models.
    """
    folder = Path(folder)
    if (folder / RESULTS_NAME).is_file():
        return folder
    if (folder / "config.json").is_file():  # a model, whatever else its folder holds
        return None
    inside = sorted(path.parent for path in folder.glob(f"*/{RESULTS_NAME}"))
    if len(inside) > 1:
        raise ValueError(
            f"compare names {str(folder)!r}, which holds the results of {len(inside)} models: name one of "
            f"{', '.join(map(str, inside))}."
        )
    return inside[0] if inside else None


def compare(first: Path, second: Path, *, seed: int = 0, test: str = "two_sided") -> list[dict[str, Any]]:
    """Test the difference of two models on every task and metric that both have.

    ``p_means`` is Welch's t-test over documents, which a table of means and standard errors is enough for. ``p_paired`` is the
    paired t-test on the same documents, which sees smaller differences. A perplexity is tested through the mean
    log-likelihood that it is a function of. ``holm_means`` and ``holm_paired`` are corrected by `holm` over all rows.

    With ``test="paper"`` both are one-tailed, for the model with the better score: table 4 of the paper. ``p_means`` then
    gives the daggers of its columns but QASPER's (whose documents are not known) from scores and numbers of documents; from
    the printed, rounded standard errors PubMedQA's falls just short.

    Args:
        first: folder of results.
        second: another one.
        seed: of the bootstrap.
        test: one of `significance.TESTS`.

    Returns:
        One dictionary a row: the scores, ``better`` (0, 1 or None), the p-values, their significance at 0.95 and their
        correction, the paired bootstrap of the mean difference between the documents' scores, first minus second.

    Raises:
        ValueError: if no task is common to both, or a common one was scored on other documents or prompts.
    """
    results = [read_results(folder) for folder in (first, second)]
    tasks = [task for task in results[0]["tasks"] if task in results[1]["tasks"]]
    if not tasks:
        lists = " and ".join(", ".join(each["tasks"]) or "nothing" for each in results)
        raise ValueError(
            f"{str(first)!r} and {str(second)!r} have no task in common, but {lists}: score both on the same."
        )
    rows = []
    for task in tasks:
        entries = [each["tasks"][task] for each in results]
        documents = [read_documents(folder, entry) for folder, entry in zip((first, second), entries, strict=True)]
        _check_same_documents(task, (first, second), entries, documents)
        for metric in entries[0]["metrics"]:
            if metric in entries[1]["metrics"]:
                scores = [each["scores"][metric] for each in documents]
                rows.append({"task": task, "metric": metric} | _compare(metric, entries, scores, seed, test))
    _correct(rows)
    return rows


def _correct(rows: list[dict[str, Any]]) -> None:
    tested = [row for row in rows if "p_means" in row]
    for which in ("means", "paired"):
        for row, adjusted in zip(tested, holm([row[f"p_{which}"] for row in tested]), strict=True):
            row[f"holm_{which}"] = adjusted


def _check_same_documents(task: str, folders, entries: list[dict], documents: list[dict]) -> None:
    if documents[0]["sha256"] == documents[1]["sha256"]:
        return
    how = " and ".join(
        f"{entry['documents']:,} by {str(folder)!r} (limit {entry['settings']['limit']}, few-shot {entry['num_fewshot']})"
        for folder, entry in zip(folders, entries, strict=True)
    )
    raise ValueError(
        f"{task} was scored on different documents or prompts: {how}. Score both models with the same --limit, --num_fewshot, "
        "--seed and --data_files."
    )


def _compare(metric: str, entries: list[dict], scores: list[list], seed: int, test: str) -> dict[str, Any]:
    first, second = (entry["metrics"][metric] for entry in entries)
    direction = first["higher_is_better"] if first["higher_is_better"] == second["higher_is_better"] else None
    row = {
        "values": [first["value"], second["value"]],
        "stderrs": [first["stderr"], second["stderr"]],
        "higher_is_better": direction,
        "documents": entries[0]["documents"],
        "test": test,
        "better": None,
    }
    rising = FUNCTIONS_OF_A_MEAN.get(first["aggregation"])
    arrays = [np.asarray(each, dtype=np.float64) if _are_numbers(each) else None for each in scores]
    if rising is None or any(each is None or len(each) < 2 for each in arrays):
        return row | {"not_tested": "needs a number for each of at least two documents, whose mean decides the metric"}
    row["bootstrap"] = paired_bootstrap(*arrays, seed=seed)
    if direction is None:
        return row | {"not_tested": "no direction is better"}
    sign = rising if direction else -rising
    gains = [sign * each for each in arrays]
    better = int(gains[1].mean() > gains[0].mean())
    ordered = (gains[better], gains[1 - better])
    means, paired = (t_test(*ordered, paired=paired, test=test) for paired in (False, True))
    return row | {
        "better": better if first["value"] != second["value"] else None,
        "p_means": means.p_value,
        "p_paired": paired.p_value,
        "t_means": means.statistic,
        "t_paired": paired.statistic,
        "significant_means": means.significant,
        "significant_paired": paired.significant,
    }


def _are_numbers(values: list) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def comparison_table(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Markdown table of `compare`, with a dagger where one model is better."""
    table = [["task", "metric", "A", "B", "A - B [95 %]", "p", "p paired"]]
    for row in rows:
        cells = [f"{value:.4f}" for value in row["values"]]
        if row["better"] is not None and (row["significant_means"] or row["significant_paired"]):
            which, mark = ("means", "†") if row["significant_means"] else ("paired", "‡")
            cells[row["better"]] += dagger(row[f"p_{which}"], row[f"holm_{which}"], mark)
        interval, tests = "", ["", ""]
        if "bootstrap" in row:
            boot = row["bootstrap"]
            interval = f"{boot['difference']:+.3f} [{boot['low']:+.3f}, {boot['high']:+.3f}]"
        if "p_means" in row:
            tests = [show_p(row[f"p_{which}"], row[f"holm_{which}"], ".3f") for which in ("means", "paired")]
        table.append([row["task"], _label(row["metric"], row["higher_is_better"]), *cells, interval, *tests])
    how = {row["test"] for row in rows} - {"two_sided"}
    notes = [
        f"A: {names[0]}; B: {names[1]}.",
        "† better at 0.95 by a one-tailed t-test on means and standard errors (p), as in the paper's table 4. It tests for"
        if how
        else "† better at 0.95 by a two-sided t-test on means and standard errors (p).",
        *(["the better score, so one comparison in ten of equal models has a dagger."] if how else []),
        "‡ better only by the sharper, paired t-test, document by document (p paired).",
        "†† and ‡‡: also after Holm's correction over all tests of the table (p in brackets).",
        "A - B: mean difference between documents and its bootstrap interval; for a perplexity that of",
        "log-likelihoods, on which it is tested.",
    ]
    return "\n".join([*_aligned(table), "", *notes])


def score_tables(output_dir: str | Path, width: int | None = None) -> str:
    """Markdown table of every model in a folder of results: models as columns, tasks and metrics as rows.

    Models that do not fit into so many columns of text go into a table below.
    """
    results = [read_results(path.parent) for path in sorted(Path(output_dir).glob(f"*/{RESULTS_NAME}"))]
    names = short_names([each["model"] for each in results])
    rows: dict[tuple[str, str], list[str]] = {}
    for column, each in enumerate(results):
        for task, entry in (each["tasks"] | each["groups"]).items():
            for metric, result in entry["metrics"].items():
                key = (task, _label(metric, result["higher_is_better"]))
                rows.setdefault(key, [""] * len(results))[column] = _cell(result, entry)
    tables, start = [], 0
    while start < len(results):
        end = start + 1
        while end < len(results) and (width is None or len(_score_lines(names, rows, start, end + 1)[0]) <= width):
            end += 1
        tables.append("\n".join(_score_lines(names, rows, start, end)))
        start = end
    return "\n\n".join(tables)


def _score_lines(names: list[str], rows: dict, start: int, end: int) -> list[str]:
    table = [["task", "metric", *names[start:end]]]
    return _aligned(table + [[*key, *cells[start:end]] for key, cells in sorted(rows.items())])


def _cell(result: dict[str, Any], entry: dict[str, Any]) -> str:
    error = "" if result["stderr"] is None else f" ± {result['stderr']:.4f}"
    part = entry.get("documents_available", entry["documents"])
    return f"{result['value']:.4f}{error}" + (f" (of {entry['documents']:,})" if entry["documents"] != part else "")


def _label(metric: str, higher_is_better: bool | None) -> str:
    name, _, filter_name = metric.partition(",")
    arrow = {True: " ↑", False: " ↓", None: ""}[higher_is_better]
    return name + ("" if filter_name == "none" else f" ({filter_name})") + arrow


def _aligned(table: list[list[str]]) -> list[str]:
    """Lines of a Markdown table whose columns line up: texts to the left, from the third column on to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    sides = "<<" + ">" * (len(widths) - 2)
    columns = list(zip(sides, widths, strict=True))
    rule = "|".join("-" * (width + 1) + ("-" if side == "<" else ":") for side, width in columns)
    cells = [[f"{cell:{side}{width}}" for cell, (side, width) in zip(row, columns, strict=True)] for row in table]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], f"|{rule}|", *lines[1:]]


def short_names(paths: list[str]) -> list[str]:
    """The ends of paths, long enough to tell them apart."""
    parts = [Path(path).parts for path in paths]
    for length in range(1, max(map(len, parts), default=1)):
        ends = ["/".join(each[-length:]) for each in parts]
        if len(set(ends)) == len(set(paths)):
            return ends
    return list(paths)
