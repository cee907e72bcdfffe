"""Compare runs at equal tokens and equal time, in speed and memory, and summarize the result in a few sentences."""

import itertools
import math
from collections.abc import Iterable, Sequence

import pandas

from ..measures import EVALUATION, PERPLEXITY_CHART
from ..presentation.pictures import in_short
from ..presentation.significance import holm, is_significant, mean_test
from .records import AXES, SECONDS, TOKENS, Run

Configurations = dict[
    str, list[Run]
]  # runs that differ only in their seed, by the name of their configuration
ACCURACY, CROSS_ENTROPY = "eval_accuracy", "eval_cross_entropy"
# Held-out figures that rank runs, in the order of the tables' columns. The first orders the rows.
COMPARED = [each for each in EVALUATION if each.chart and each.better]
# Held-out rows of two runs count as equal if they have about as many predicted tokens.
SAME_ROWS = 0.1


def rank(values: dict[str, Sequence[float]], higher_is_better: bool) -> pandas.DataFrame:
    """Rank configurations by their means over seeds: a row for each, the best first.

    The columns are ``seeds``, ``mean``, ``spread`` (standard deviation), ``behind`` (distance from the best mean), its ``p``,
    and ``adjusted`` by Holm's correction over all pairs, since any could have been the best; nan means unknown.
    """
    table = pandas.DataFrame(
        {name: pandas.Series(own, dtype=float) for name, own in values.items()}
    )
    table = pandas.DataFrame({"seeds": table.count(), "mean": table.mean(), "spread": table.std()})
    table = table.sort_values("mean", ascending=not higher_is_better, kind="stable")
    table["behind"] = (table["mean"] - table["mean"].iloc[0]).abs()
    tests = {
        pair: mean_test(*(values[name] for name in pair), paired=False)
        for pair in itertools.combinations(table.index, 2)
        if min(len(values[name]) for name in pair) > 1
    }
    adjusted = dict(zip(tests, holm([*tests.values()]), strict=True))
    for column, found in (("p", tests), ("adjusted", adjusted)):
        table[column] = [found.get((table.index[0], name), math.nan) for name in table.index]
    return table


def held_out(
    configurations: Configurations, axis: str
) -> tuple[float, dict[str, pandas.DataFrame]]:
    """Return the most tokens or seconds that every run was evaluated at, and `rank` there by each of `COMPARED`, by name."""
    ends = [
        run.curve(ACCURACY, axis)[axis].max() for runs in configurations.values() for run in runs
    ]
    position, ranked = min((end for end in ends if end > 0), default=0.0), {}
    for measure in COMPARED:
        values: dict[str, list[float]] = {}
        for name, runs in configurations.items():
            found = [run.value_at(measure.name, axis, position) for run in runs]
            values[name] = [value for value in found if value is not None]
        if any(values.values()):
            ranked[measure.name] = rank(values, measure.better == "higher")
    return position, ranked


def first_reaching(points: Iterable[tuple[float, float]], wanted: float) -> float | None:
    """Return where a falling curve first reaches a value, interpolated linearly; None if it never does."""
    points = list(points)
    for (start, above), (position, value) in itertools.pairwise([*points[:1], *points]):
        if value <= wanted:
            return (
                position
                if above <= wanted
                else start + (above - wanted) / (above - value) * (position - start)
            )
    return None


def not_comparable(configurations: Configurations) -> str | None:
    """Return the reason why the held-out figures of these runs must not be compared, or None."""
    every = [run for runs in configurations.values() for run in runs]
    same = {"tasks": "task", "vocabularies": "model: vocab_size", "tokenizers": "tokenizer"}
    same |= {"held-out texts or masks": "held_out_texts", "lengths of rows": "data: max_seq_length"}
    for what, setting in same.items():
        values = {run.settings.get(setting) for run in every} - {None}
        if len(values) > 1:
            return f"The runs have different {what} ({', '.join(sorted(map(str, values)))})"
    counted = [run.curve("eval_predicted_tokens", "step")["eval_predicted_tokens"] for run in every]
    counts = [int(each.iloc[-1]) for each in counted if len(each)]
    if counts and max(counts) > (1 + SAME_ROWS) * min(counts):
        return f"The runs were evaluated on different rows ({min(counts):,} to {max(counts):,} predicted tokens)"
    return None


def economy(runs: Sequence[Run]) -> dict[str, float]:
    """Return means over seeds: tokens, seconds, ``hours`` of all processes, ``pace`` (tokens / s), peak ``memory`` (MiB)."""
    ends = pandas.DataFrame([run.end for run in runs], dtype=float)
    memory = [run.curve("peak_memory_mib", "step")["peak_memory_mib"].max() for run in runs]
    means = ends.assign(
        hours=ends["process_seconds"] / 3600, pace=ends[TOKENS] / ends[SECONDS]
    ).mean()
    return means.to_dict() | {"memory": pandas.Series(memory).max()}


def compare(configurations: Configurations) -> tuple[dict[str, tuple[float, dict]], list[str]]:
    """Return `held_out` by axis, empty if nothing can be compared, and a list of sentences about the runs."""
    found = {
        name: runs
        for name, runs in configurations.items()
        if any(ACCURACY in run.logged for run in runs)
    }
    if not found:
        return {}, [
            "No run was evaluated over the whole vocabulary, so nothing here shows which one predicts best."
        ]
    if reason := not_comparable(configurations):
        return {}, [f"{reason}, so their held-out figures say nothing about which one is better."]
    ranked = {axis: held_out(found, axis) for axis in AXES}
    if len(found) < 2:
        return ranked, [_quality(TOKENS, *ranked[TOKENS])]
    sentences = [_quality(axis, *ranked[axis]) for axis in AXES] + _reached(found)
    if min(map(len, found.values())) < 2:
        sentences.append(
            "A configuration with one seed does not rule out chance, so nothing about it is significant."
        )
    return ranked, sentences


def _quality(axis: str, position: float, ranked: dict[str, pandas.DataFrame]) -> str:
    rows, parts = ranked[ACCURACY].dropna(subset="mean"), []
    entropies = ranked[CROSS_ENTROPY]["mean"].dropna() if CROSS_ENTROPY in ranked else ()
    for row in rows.itertuples():
        parts.append(f"{row.mean:.1%} by {row.Index}")
        if row.Index in entropies:
            parts[-1] += f" (perplexity {in_short(PERPLEXITY_CHART.scale(entropies[row.Index]))})"
    where = f"At equal {AXES[axis]} ({in_words(position, axis)})"
    if len(rows) < 2:  # the others may have been evaluated only later
        where = f"After {in_words(position, axis)} {'tokens' if axis == TOKENS else 'of training'}"
    text = f"{where}, held-out accuracy: {_listed(parts)}."
    if len(rows) > 1 and (p := rows["adjusted"].iloc[1]) >= 0:
        text += f" The lead over the second is {'' if is_significant(p) else 'not '}significant (p = {p:.2g})."
    return text


def _reached(configurations: Configurations) -> list[str]:
    """Say what the configuration with the lowest final perplexity needs to reach the others' final ones."""
    curves = {
        name: curve
        for name, runs in configurations.items()
        if (curve := _mean_curve(runs))[TOKENS].max() > 0
    }
    if len(curves) < 2:
        return []
    best, parts = min(curves, key=lambda name: curves[name][CROSS_ENTROPY].iloc[-1]), []
    leading = curves.pop(best)
    for name, curve in curves.items():
        end, shares = curve.iloc[-1], []
        for axis in AXES:
            points = zip(leading[axis], leading[CROSS_ENTROPY], strict=True)
            shares.append(first_reaching(points, end[CROSS_ENTROPY]) / end[axis])
        parts.append(
            f"{shares[0]:.0%} of the tokens and {shares[1]:.0%} of the training time of {name}"
        )
    return [f"To reach the others' final perplexity, {best} needs {_listed(parts)}."]


def _mean_curve(runs: Sequence[Run]) -> pandas.DataFrame:
    """Return means over seeds at the steps at which all were evaluated."""
    columns = [
        "step",
        *AXES,
        CROSS_ENTROPY,
    ]  # a resumed run, or a call of evaluate, may evaluate a step twice
    points = pandas.concat(
        [run.logged.reindex(columns=columns).dropna().drop_duplicates("step") for run in runs]
    )
    steps = points.groupby("step")
    return steps.mean()[steps.size() == len(runs)]


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def in_words(value: float, axis: str) -> str:
    """Format tokens (950, 40,200, 2.05 M) or seconds (45 s, 12 min, 3.5 h) with three digits."""
    if axis == TOKENS:
        return in_short(value)
    for least, divisor, unit in ((6000, 3600, "h"), (100, 60, "min")):
        if value >= least:
            return f"{in_short(value / divisor)} {unit}"
    return f"{in_short(value)} s"
