"""Runs beside each other: at equal tokens, at equal time, in speed and memory, and what that comes to in a few sentences."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import pandas

from ..measures import EVALUATION, PERPLEXITY_CHART
from ..pictures import in_short
from ..significance import LEVEL, TTest, holm, t_test
from .records import AXES, SECONDS, TOKENS, Configuration

ACCURACY, CROSS_ENTROPY = "eval_accuracy", "eval_cross_entropy"
# Held-out figures by which runs are ranked, in the order of the tables' columns. The first one orders the rows.
COMPARED = [each for each in EVALUATION if each.chart and each.better]
# Held-out rows of two runs count as the same if they have about as many predicted tokens: masks depend on the seed.
SAME_ROWS = 0.1


@dataclass(frozen=True)
class Row:
    """One configuration in a comparison, with one value for each run that has any.

    Attributes:
        behind: difference between the means of the best configuration and of this one, 0 for the best; None without values.
        test: of the difference; None for the best itself, and with fewer than two seeds on either side.
        adjusted: its p-value after Holm's correction over all pairs of configurations, since any could have been the best.
    """

    name: str
    values: tuple[float, ...]
    behind: float | None = None
    test: TTest | None = None
    adjusted: float | None = None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)


def rank(values: dict[str, Sequence[float]], higher_is_better: bool) -> list[Row]:
    """Compare configurations by the means over their seeds, best first, those without values last."""
    found = {name: tuple(own) for name, own in values.items() if own}
    order = sorted(found, key=lambda name: statistics.fmean(found[name]), reverse=higher_is_better)
    tests = {
        pair: t_test(*(found[name] for name in pair), paired=False)
        for pair in itertools.combinations(order, 2)
        if min(len(found[name]) for name in pair) > 1
    }
    adjusted = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
    rows = []
    for name in order:
        behind = abs(statistics.fmean(found[order[0]]) - statistics.fmean(found[name]))
        pair = order[0], name
        rows.append(Row(name, found[name], behind, tests.get(pair), adjusted.get(pair)))
    return rows + [Row(name, ()) for name, own in values.items() if not own]


def evaluated(configurations: list[Configuration]) -> list[Configuration]:
    """Those that were evaluated over the whole vocabulary."""
    return [each for each in configurations if any(ACCURACY in run.logged for run in each.runs)]


def common_position(configurations: list[Configuration], axis: str) -> float:
    """The most tokens or seconds up to which every run with evaluations has been evaluated."""
    curves = [run.curve(ACCURACY, axis) for each in configurations for run in each.runs]
    return min(points[axis].max() for points in curves if len(points))


def held_out(configurations: list[Configuration], axis: str, position: float) -> dict[str, list[Row]]:
    """`rank` by each of `COMPARED` after so many tokens or seconds, by name; those without any value are left out."""
    ranked = {}
    for measure in COMPARED:
        values = {
            each.name: [found for run in each.runs if (found := run.value_at(measure.name, axis, position)) is not None]
            for each in configurations
        }
        if any(values.values()):
            ranked[measure.name] = rank(values, measure.better == "higher")
    return ranked


def first_reaching(points: Sequence[tuple[float, float]], wanted: float) -> float | None:
    """Where a curve that is to fall comes down to a value first, on straight lines between its points; None if nowhere."""
    before = None
    for position, value in points:
        if value <= wanted:
            if before is None:
                return position
            return before[0] + (before[1] - wanted) / (before[1] - value) * (position - before[0])
        before = position, value
    return None


def shares_of(baseline: Configuration, other: Configuration) -> dict[str, float | None]:
    """What another configuration needs to be as good as a baseline at its end, by held-out cross-entropy, means over seeds.

    Returns:
        By axis, over that of the baseline; None where it is never as good. Empty without evaluations.
    """
    own, theirs = (_mean_curve(each) for each in (baseline, other))
    if own.empty or theirs.empty:
        return {}
    end, shares = own.iloc[-1], {}
    for axis in AXES:
        found = first_reaching(theirs[[axis, CROSS_ENTROPY]].to_numpy().tolist(), end[CROSS_ENTROPY])
        shares[axis] = None if found is None or not end[axis] else found / end[axis]
    return shares


def _mean_curve(configuration: Configuration) -> pandas.DataFrame:
    """Means over the seeds at the steps at which all were evaluated."""
    found = [run.logged.dropna(subset=CROSS_ENTROPY) for run in configuration.runs if CROSS_ENTROPY in run.logged] or [
        pandas.DataFrame(columns=["step", *AXES, CROSS_ENTROPY])
    ]
    groups = pandas.concat(found)[["step", *AXES, CROSS_ENTROPY]].groupby("step")
    return groups.mean()[groups.size() == len(configuration.runs)]


def not_comparable(configurations: list[Configuration]) -> str | None:
    """Why the held-out figures of these runs must not be compared, if so."""
    runs = [run for each in configurations for run in each.runs]
    for what, values in (
        ("tasks", {run.settings.get("task") for run in runs} - {None}),
        ("vocabularies", {run.settings.get("model: vocab_size") for run in runs} - {None}),
        ("tokenizers", {run.tokenizer for run in runs} - {None}),
    ):
        if len(values) > 1:
            return f"The runs have different {what} ({', '.join(sorted(map(str, values)))})"
    counted = [run.curve("eval_predicted_tokens", "step")["eval_predicted_tokens"] for run in runs]
    counts = [int(each.iloc[-1]) for each in counted if len(each)]
    if counts and max(counts) > (1 + SAME_ROWS) * min(counts):
        return f"The runs were evaluated on different rows ({min(counts):,} to {max(counts):,} predicted tokens)"
    return None


def economy(configuration: Configuration) -> dict[str, float]:
    """Means over seeds: tokens, seconds, ``hours`` of all processes, ``pace`` in tokens a second; largest ``memory`` in MiB."""
    ends = pandas.DataFrame([run.end | {"processes": run.processes} for run in configuration.runs], dtype=float)
    memory = [run.curve("peak_memory_mib", "step")["peak_memory_mib"].max() for run in configuration.runs]
    means = ends.assign(hours=ends[SECONDS] * ends["processes"] / 3600, pace=ends[TOKENS] / ends[SECONDS]).mean()
    return means.to_dict() | {"memory": pandas.Series(memory).max()}


def summary(configurations: list[Configuration]) -> list[str]:
    """What the training runs say, in sentences of HTML that need no picture."""
    sentences, found, reason = [], evaluated(configurations), not_comparable(configurations)
    if not found:
        sentences.append(
            "No run was evaluated on held-out rows over the whole vocabulary, so nothing here says which one predicts best."
        )
    elif reason is not None:
        sentences.append(f"{escape(reason)}, so their held-out figures say nothing about which one is better.")
    else:
        sentences += [_quality(found, axis) for axis in AXES][: len(found)]
        sentences += _reached(found)
        counts = [len(each.runs) for each in found]
        if len(found) > 1 and min(counts) < 2:
            which = "One seed each" if max(counts) == 1 else "Some configurations have one seed only"
            sentences.append(f"{which}: chance is not ruled out, and no significance can be given without a second.")
    return sentences


def _quality(configurations: list[Configuration], axis: str) -> str:
    position = common_position(configurations, axis)
    ranked = held_out(configurations, axis, position)
    rows = [row for row in ranked[ACCURACY] if row.values]
    entropies = {row.name: row.mean for row in ranked.get(CROSS_ENTROPY, ()) if row.values}
    where = f"At equal {'tokens' if axis == TOKENS else 'training time'} ({in_words(position, axis)})"
    if len(rows) < 2:
        where = f"After {in_words(position, axis)} tokens"
    parts = [
        f"{row.mean:.1%} by {strong(row.name)}"
        + (f" (perplexity {in_short(PERPLEXITY_CHART.scale(entropies[row.name]))})" if row.name in entropies else "")
        for row in rows
    ]
    text = f"{where}, held-out tokens predicted right: {listed(parts)}."
    if len(rows) > 1 and rows[1].test is not None:
        test = rows[1].test
        verdict = "" if test.significant else "not "
        text += f" The lead over the second is {verdict}significant (p = {test.p_value:.2g}, level {LEVEL})."
    return text


def _reached(configurations: list[Configuration]) -> list[str]:
    """What the run with the lowest perplexity at its end needs for the final perplexities of the others."""
    ends = {each.name: curve[CROSS_ENTROPY].iloc[-1] for each in configurations if len(curve := _mean_curve(each))}
    if len(ends) < 2:
        return []
    best = min(configurations, key=lambda each: ends.get(each.name, math.inf))
    parts = []
    for other in (each for each in configurations if each is not best and each.name in ends):
        shares = shares_of(other, best)
        time = "" if shares[SECONDS] is None else f" and {shares[SECONDS]:.0%} of the training time"
        parts.append(f"{shares[TOKENS]:.0%} of the tokens{time} of {strong(other.name)}")
    return [f"For the final perplexity of the others, {strong(best.name)} needs {listed(parts)}."]


def strong(name: str) -> str:
    """A name in HTML, to stand out."""
    return f"<b>{escape(name)}</b>"


def listed(parts: list[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def in_words(value: float, axis: str) -> str:
    """Tokens (950, 40.2 k, 2.05 M, 1.5 B) or seconds (45 s, 12 min, 3.5 h) at most four digits long."""
    steps = [(1e4, 1, ""), (1e6, 1e3, " k"), (1e9, 1e6, " M"), (math.inf, 1e9, " B")]
    if axis == SECONDS:
        steps = [(100, 1, " s"), (6000, 60, " min"), (math.inf, 3600, " h")]
    divisor, unit = next((divisor, unit) for limit, divisor, unit in steps if value < limit)
    value /= divisor
    return (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") + unit
