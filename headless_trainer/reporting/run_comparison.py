"""Runs beside each other: at equal tokens, at equal time, in speed and memory, and what that comes to in a few sentences."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..measures import EVALUATION, PERPLEXITY_CHART
from ..pictures import in_short
from ..significance import LEVEL, TTest, holm, t_test
from .records import Configuration

ACCURACY, CROSS_ENTROPY = "eval_accuracy", "eval_cross_entropy"
# Held-out figures by which runs are ranked, in the order of the tables' columns. The first one orders the rows.
COMPARED = [each for each in EVALUATION if each.chart and each.better]
# Held-out rows of two runs count as the same if they have about as many predicted tokens: masks depend on the seed.
SAME_ROWS = 0.1
SAME_SPEED = 1.01
# Logs of a run from which on one can tell whether its speed was steady.
ENOUGH_LOGS = 10


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


def common_position(configurations: list[Configuration], axis: str) -> float | None:
    """The most ``tokens`` or ``seconds`` up to which every run with evaluations has been evaluated."""
    curves = [run.curve(ACCURACY, axis) for each in configurations for run in each.runs]
    ends = [points[-1][0] for points in curves if points]
    return min(ends) if ends else None


def held_out(configurations: list[Configuration], axis: str, position: float) -> dict[str, list[Row]]:
    """`rank` by each of `COMPARED` after so many ``tokens`` or ``seconds``, by name; those without any value are left out."""
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
        ``tokens`` and ``seconds`` over those of the baseline; None where it is never as good. Empty without evaluations.
    """
    curves = [_mean_curve(each) for each in (baseline, other)]
    if not all(curves):
        return {}
    end, shares = curves[0][-1], {}
    for axis in ("tokens", "seconds"):
        found = first_reaching([(point[axis], point["value"]) for point in curves[1]], end["value"])
        shares[axis] = None if found is None or not end[axis] else found / end[axis]
    return shares


def _mean_curve(configuration: Configuration) -> list[dict[str, float]]:
    """Means over the seeds at the steps at which all were evaluated."""
    found = [{logs["step"]: logs for logs in run.history if CROSS_ENTROPY in logs} for run in configuration.runs]
    steps = sorted(set.intersection(*map(set, found)))
    return [
        {
            "value": statistics.fmean(logs[step][CROSS_ENTROPY] for logs in found),
            **{
                axis: statistics.fmean(run.when(step)[axis] for run in configuration.runs)
                for axis in ("tokens", "seconds")
            },
        }
        for step in steps
    ]


def process_hours(configuration: Configuration) -> float:
    """Hours of training steps, times the processes that trained, mean over seeds."""
    return statistics.fmean(run.clock[-1][2] * run.processes for run in configuration.runs) / 3600


def not_comparable(configurations: list[Configuration]) -> str | None:
    """Why the held-out figures of these runs must not be compared, if so."""
    runs = [run for each in configurations for run in each.runs]
    for what, values in (
        ("tasks", {run.settings.get("task") for run in runs} - {None}),
        ("vocabularies", {run.config.get("vocab_size") for run in runs} - {None}),
        ("tokenizers", {run.tokenizer for run in runs} - {None}),
    ):
        if len(values) > 1:
            return f"The runs have different {what} ({', '.join(sorted(map(str, values)))})"
    counts = [run.values("eval_predicted_tokens")[-1] for run in runs if run.values("eval_predicted_tokens")]
    if counts and max(counts) > (1 + SAME_ROWS) * min(counts):
        return f"The runs were evaluated on different rows ({min(counts):,} to {max(counts):,} predicted tokens)"
    return None


def speed(configuration: Configuration) -> float:
    """Tokens per second of training steps over whole runs, mean over seeds; nan if no time was measured."""
    clocks = [run.clock[-1] for run in configuration.runs]
    return statistics.fmean(tokens / seconds if seconds else math.nan for _, tokens, seconds in clocks)


def peak_memory(configuration: Configuration) -> float:
    """Largest memory of any seed, in MiB; nan if it was not logged."""
    return max((value for run in configuration.runs for value in run.values("peak_memory_mib")), default=math.nan)


def summary(configurations: list[Configuration]) -> list[str]:
    """What the training runs say, in sentences of HTML that need no picture."""
    sentences = []
    reason = not_comparable(configurations)
    evaluated = [each for each in configurations if any(run.values(ACCURACY) for run in each.runs)]
    if not evaluated:
        sentences.append(
            "No run was evaluated on held-out rows over the whole vocabulary, so nothing here says which one predicts best."
        )
    elif reason is not None:
        sentences.append(f"{escape(reason)}, so their held-out figures say nothing about which one is better.")
    elif len(evaluated) == 1:
        sentences += _alone(evaluated[0])
    else:
        sentences += [_quality(evaluated, axis) for axis in ("tokens", "seconds")]
        sentences += _reached(evaluated)
        counts = [len(each.runs) for each in evaluated]
        if min(counts) < 2:
            which = "One seed each" if max(counts) == 1 else "Some configurations have one seed only"
            sentences.append(f"{which}: chance is not ruled out, and no significance can be given without a second.")
    if len(configurations) > 1:
        sentences.append(_economy(configurations))
    if unsteady := [each.name for each in configurations if _is_unsteady(each)]:
        sentences.append(
            f"The speed of {listed([strong(name) for name in unsteady])} varied by more than half along the run, as on a "
            "machine that had other work: read times and speeds with care."
        )
    return sentences


def _is_unsteady(configuration: Configuration) -> bool:
    for run in configuration.runs:
        paces = sorted(run.values("tokens_per_second")[1:])  # the first log has what happens once, such as compiling
        if len(paces) >= ENOUGH_LOGS and paces[int(0.9 * len(paces))] > 1.5 * paces[int(0.1 * len(paces))]:
            return True
    return False


def _alone(configuration: Configuration) -> list[str]:
    run = configuration.runs[0]
    accuracy, entropy = run.values(ACCURACY)[-1], run.values(CROSS_ENTROPY)[-1]
    clock = run.when([logs["step"] for logs in run.history if ACCURACY in logs][-1])
    return [
        f"After {tokens_in_words(clock['tokens'])} tokens and {seconds_in_words(clock['seconds'])} of training steps, "
        f"{strong(configuration.name)} predicts {accuracy:.1%} of the held-out tokens right (perplexity "
        f"{perplexity(entropy)})."
    ]


def _quality(configurations: list[Configuration], axis: str) -> str:
    position = common_position(configurations, axis)
    where = (
        f"At equal tokens ({tokens_in_words(position)})"
        if axis == "tokens"
        else f"At equal training time ({seconds_in_words(position)})"
    )
    ranked = held_out(configurations, axis, position)
    rows = [row for row in ranked[ACCURACY] if row.values]
    entropies = {row.name: row.mean for row in ranked.get(CROSS_ENTROPY, ()) if row.values}
    if len(rows) < 2:
        return f"{where}, only {strong(rows[0].name)} had been evaluated."
    best, *others = rows
    text = f"{where}, {strong(best.name)} predicts best: {best.mean:.1%} of the held-out tokens right, against "
    text += listed([f"{row.mean:.1%} of {strong(row.name)}" for row in others]) + "."
    if len(entropies) == len(rows):
        first = min(entropies, key=entropies.get)
        rest = listed([perplexity(entropies[row.name]) for row in rows if row.name != first])
        who = "Its perplexity is" if first == best.name else f"By perplexity {strong(first)} is ahead:"
        text += f" {who} {perplexity(entropies[first])}, against {rest}."
    tested = others[0].test
    if tested is not None:
        verdict = "significant" if tested.significant else "not significant"
        text += f" The lead in accuracy over the second is {verdict} (p = {tested.p_value:.2g}, level {LEVEL})."
    return text


def _reached(configurations: list[Configuration]) -> list[str]:
    """What the run with the lowest perplexity at its end needs for the final perplexities of the others."""
    ends = {each.name: curve[-1]["value"] for each in configurations if (curve := _mean_curve(each))}
    if len(ends) < 2:
        return []
    best = min(configurations, key=lambda each: ends.get(each.name, math.inf))
    parts = []
    for other in configurations:
        if other is not best and other.name in ends:
            tokens, seconds = shares_of(other, best).values()
            time = "" if seconds is None else f" and {seconds:.0%} of the training time"
            parts.append(f"{tokens:.0%} of the tokens{time} of {strong(other.name)}")
    return [f"For the final perplexity of the others, {strong(best.name)} needs {listed(parts)}."]


def _economy(configurations: list[Configuration]) -> str:
    paces = {each.name: speed(each) for each in configurations}
    memory = {each.name: peak_memory(each) for each in configurations}
    known = sorted((name for name in paces if not math.isnan(paces[name])), key=paces.get, reverse=True)
    if len(known) < 2:
        return "How fast the runs were is not known."
    if paces[known[0]] < SAME_SPEED * paces[known[-1]]:
        return f"All train about as fast, with {paces[known[0]]:,.0f} tokens a second."
    parts = []
    for name in known[1:]:
        part = f"{paces[known[0]] / paces[name]:.2f} times as many as {strong(name)}"
        ratio = memory[known[0]] / memory[name]
        parts.append(part + ("" if math.isnan(ratio) else f" ({ratio:.2f} times its memory)"))
    return f"{strong(known[0])} is fastest with {paces[known[0]]:,.0f} tokens a second: {listed(parts)}."


def strong(name: str) -> str:
    """A name in HTML, to stand out."""
    return f"<b>{escape(name)}</b>"


def listed(parts: list[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def perplexity(cross_entropy: float) -> str:
    """Perplexity from nats a token, with three digits at least."""
    return in_short(PERPLEXITY_CHART.scale(cross_entropy))


def seconds_in_words(seconds: float) -> str:
    """45 s, 12 min, 3.5 h."""
    for limit, divisor, unit in ((100, 1, "s"), (6000, 60, "min")):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{seconds / 3600:,.0f} h" if seconds >= 3.6e5 else f"{seconds / 3600:.3g} h"


def tokens_in_words(tokens: float) -> str:
    """950, 40.2 k, 2.05 M, 1.5 B."""
    if tokens < 1e4:
        return f"{tokens:,.0f}"
    for limit, divisor, unit in ((1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if tokens < limit:
            return f"{tokens / divisor:.3g} {unit}"
    return f"{tokens / 1e9:,.3g} B"
