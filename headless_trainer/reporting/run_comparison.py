"""Compare runs at equal tokens and equal time, in speed and memory, and sum up in sentences."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import pandas

from ..measures import EVALUATION, PERPLEXITY_CHART
from ..presentation.pictures import in_short
from ..presentation.significance import holm, is_significant, mean_test
from .records import AXES, SECONDS, TOKENS, TrainingRun

# Runs that differ only in their seed, by the name of their configuration.
Configurations = dict[str, list[TrainingRun]]
# A table of `rank` by the name of each held-out figure.
Rankings = dict[str, pandas.DataFrame]
ACCURACY = "eval_accuracy"
CROSS_ENTROPY = "eval_cross_entropy"
# Held-out figures that rank runs, in the order of the tables' columns. The first orders the rows.
COMPARED = [measure for measure in EVALUATION if measure.chart and measure.better]
# Settings in which runs must agree to be compared, with what they are in a message.
COMPARABLE_BY = {
    "tasks": "task",
    "vocabularies": "model: vocab_size",
    "tokenizers": "tokenizer",
    "held-out texts": "held_out_texts",
    "lengths of rows": "data: max_seq_length",
    "shares of masked tokens": "mlm_probability",
    "held-out rows": "held_out_rows",
}
# Held-out rows of two runs count as equal if they have about as many predicted tokens.
SAME_ROWS = 0.1


def rank(values: Mapping[str, Sequence[float]], higher_is_better: bool) -> pandas.DataFrame:
    """Rank configurations by their means over seeds: a row for each, the best first.

    The columns are ``seeds``, ``mean``, ``spread`` (standard deviation), ``behind`` (distance from
    the best mean), its ``p``, and ``adjusted`` by Holm's correction over all pairs, since any could
    have been the best; nan means unknown.
    """
    by_seed = pandas.DataFrame(
        {name: pandas.Series(scores, dtype=float) for name, scores in values.items()}
    )
    table = pandas.DataFrame(
        {"seeds": by_seed.count(), "mean": by_seed.mean(), "spread": by_seed.std()}
    )
    table = table.sort_values("mean", ascending=not higher_is_better, kind="stable")
    table["behind"] = (table["mean"] - table["mean"].iloc[0]).abs()
    p_values = {
        (better, worse): mean_test(values[better], values[worse], paired=False)
        for better, worse in itertools.combinations(table.index, 2)
        if len(values[better]) > 1 and len(values[worse]) > 1
    }
    # Over all pairs, although only those with the best are shown: which one is best was not known.
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    best = table.index[0]
    table["p"] = [p_values.get((best, name), math.nan) for name in table.index]
    table["adjusted"] = [adjusted.get((best, name), math.nan) for name in table.index]
    return table


def held_out(configurations: Configurations, axis: str) -> tuple[float, Rankings]:
    """Rank configurations by each of `COMPARED` at an equal position.

    The position is the most tokens or seconds (``axis``) at which every run was evaluated. A
    configuration of which a run was evaluated only later has no values there: the mean over its
    other seeds would favour those that were quick. There are no rankings if that holds for all.
    """
    evaluated = {
        name: [run for run in runs if ACCURACY in run.logged]
        for name, runs in configurations.items()
    }
    ends = [run.curve(ACCURACY, axis)[axis].max() for runs in evaluated.values() for run in runs]
    # Runs without an evaluation have nan, which is not above 0.
    position = min((end for end in ends if end > 0), default=0.0)
    rankings = {}
    for measure in COMPARED:
        values: dict[str, list[float]] = {}
        for name, runs in evaluated.items():
            at_position = [run.value_at(measure.name, axis, position) for run in runs]
            values[name] = [value for value in at_position if value is not None]
            if len(values[name]) < len(runs):
                values[name] = []
        if any(values.values()):
            rankings[measure.name] = rank(values, measure.better == "higher")
    return position, rankings


def first_reaching(points: Iterable[tuple[float, float]], wanted: float) -> float | None:
    """Return where a falling curve first reaches a value, interpolated linearly.

    It is None if the curve never does. Where the first point is already there, the position is that
    point's, and only an upper bound. ``points`` are pairs of position and value.
    """
    points = list(points)
    if points and points[0][1] <= wanted:
        return points[0][0]
    for (before, above), (position, value) in itertools.pairwise(points):
        if value <= wanted:
            share = (above - wanted) / (above - value)
            return before + share * (position - before)
    return None


def not_comparable(configurations: Configurations) -> str | None:
    """Return the reason why the runs' held-out figures must not be compared, or None."""
    all_runs = [run for runs in configurations.values() for run in runs]
    for what, setting in COMPARABLE_BY.items():
        values = {run.settings.get(setting) for run in all_runs} - {None}
        if len(values) > 1:
            return f"The runs have different {what} ({', '.join(sorted(map(str, values)))})"
    counts = []
    for run in all_runs:
        predicted = run.curve("eval_predicted_tokens", "step")["eval_predicted_tokens"]
        if len(predicted):
            counts.append(int(predicted.iloc[-1]))
    if counts and max(counts) > (1 + SAME_ROWS) * min(counts):
        return (
            f"The runs were evaluated on different rows ({min(counts):,} to {max(counts):,} "
            "predicted tokens)"
        )
    return None


def economy(runs: Sequence[TrainingRun]) -> dict[str, float]:
    """Return what a configuration took, as means over seeds.

    The figures are tokens and seconds (`AXES`), ``hours`` of all processes, ``pace`` (tokens / s),
    and the largest peak of ``memory`` (MiB).
    """
    ends = pandas.DataFrame([run.end for run in runs], dtype=float)
    ends["hours"] = ends["process_seconds"] / 3600
    ends["pace"] = ends[TOKENS] / ends[SECONDS]
    peaks = [run.curve("peak_memory_mib", "step")["peak_memory_mib"].max() for run in runs]
    return ends.mean().to_dict() | {"memory": pandas.Series(peaks).max()}


def compare_runs(
    configurations: Configurations,
) -> tuple[dict[str, tuple[float, Rankings]], list[str]]:
    """Return `held_out` by axis, of those on which something can be compared, and sentences about
    the runs.
    """
    evaluated = {
        name: runs
        for name, runs in configurations.items()
        if any(ACCURACY in run.logged for run in runs)
    }
    if not evaluated:
        return {}, [
            "No run was evaluated over the whole vocabulary, so nothing here shows which one "
            "predicts best."
        ]
    reason = not_comparable(configurations)
    if reason:
        return {}, [f"{reason}, so their held-out figures say nothing about which one is better."]
    ranked = {}
    sentences = []
    for axis in AXES:
        position, rankings = held_out(evaluated, axis)
        if ACCURACY in rankings:
            ranked[axis] = (position, rankings)
            sentences.append(_held_out_sentence(axis, position, rankings))
        else:
            sentences.append(
                f"At equal {AXES[axis]} nothing can be compared, since of each configuration a run "
                "was evaluated only later: evaluate more often (--eval_strategy steps "
                "--eval_steps N)."
            )
    if len(evaluated) < 2:
        # The time of a single configuration is equal to no other.
        return ranked, sentences[:1]
    sentences += _sentences_of_what_the_best_needs(evaluated)
    if any(len(runs) < 2 for runs in evaluated.values()):
        sentences.append(
            "A configuration with one seed does not rule out chance, so nothing about it is "
            "significant."
        )
    return ranked, sentences


def _held_out_sentence(axis: str, position: float, rankings: Rankings) -> str:
    """Say how accurate each configuration is at a position, the best first."""
    rows = rankings[ACCURACY].dropna(subset="mean")
    entropies = {}
    if CROSS_ENTROPY in rankings:
        entropies = rankings[CROSS_ENTROPY]["mean"].dropna().to_dict()
    parts = []
    for row in rows.itertuples():
        part = f"{row.mean:.1%} by {row.Index}"
        if row.Index in entropies:
            perplexity = PERPLEXITY_CHART.scale(entropies[row.Index])
            part += f" (perplexity {in_short(perplexity)})"
        parts.append(part)
    if len(rows) > 1:
        where = f"At equal {AXES[axis]} ({in_words(position, axis)})"
    else:
        # The others may have been evaluated only later.
        of_what = "of training"
        if axis == TOKENS:
            of_what = "tokens"
        where = f"After {in_words(position, axis)} {of_what}"
    sentence = f"{where}, held-out accuracy: {_listed(parts)}."
    if len(rows) > 1:
        p = rows["adjusted"].iloc[1]
        if not math.isnan(p):
            verdict = "not significant"
            if is_significant(p):
                verdict = "significant"
            sentence += f" The lead over the second is {verdict} (p = {p:.2g})."
    return sentence


def _sentences_of_what_the_best_needs(configurations: Configurations) -> list[str]:
    """Say what the configuration with the lowest final perplexity needs for the others' final one.

    There is one sentence, or none if fewer than two configurations have a curve.
    """
    mean_curves = {}
    for name, runs in configurations.items():
        curve = _mean_curve(runs)
        if curve[TOKENS].max() > 0:
            mean_curves[name] = curve
    if len(mean_curves) < 2:
        return []
    best = min(mean_curves, key=lambda name: mean_curves[name][CROSS_ENTROPY].iloc[-1])
    leading = mean_curves.pop(best)
    parts = []
    for name, curve in mean_curves.items():
        end = curve.iloc[-1]
        at_most = ""
        if leading[CROSS_ENTROPY].iloc[0] <= end[CROSS_ENTROPY]:
            # The leader was that good at its first evaluation, and possibly long before.
            at_most = "at most "
        shares = []
        for axis in AXES:
            points = zip(leading[axis], leading[CROSS_ENTROPY], strict=True)
            # The leader ends lowest, so it reaches the end of every other curve.
            shares.append(first_reaching(points, end[CROSS_ENTROPY]) / end[axis])
        of_tokens, of_time = shares
        parts.append(
            f"{at_most}{of_tokens:.0%} of the tokens and {at_most}{of_time:.0%} of the training "
            f"time of {name}"
        )
    return [f"To reach the others' final perplexity, {best} needs {_listed(parts)}."]


def _mean_curve(runs: Sequence[TrainingRun]) -> pandas.DataFrame:
    """Return means over seeds at the steps at which all were evaluated."""
    columns = ["step", *AXES, CROSS_ENTROPY]
    # A resumed run, or a call of evaluate, may evaluate a step twice.
    evaluations = [
        run.logged.reindex(columns=columns).dropna().drop_duplicates("step") for run in runs
    ]
    by_step = pandas.concat(evaluations).groupby("step")
    return by_step.mean()[by_step.size() == len(runs)]


def _listed(parts: list[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def in_words(value: float, axis: str) -> str:
    """Format tokens (950, 40,200, 2.05 M) or seconds (45 s, 12 min, 3.5 h) with three digits."""
    if axis == TOKENS:
        return in_short(value)
    if value >= 6000:
        return f"{in_short(value / 3600)} h"
    if value >= 100:
        return f"{in_short(value / 60)} min"
    return f"{in_short(value)} s"
