"""Figures of training runs that are shown beyond the logs, one row each: where, under which label, and which end is better.

A new figure is one call, ``trainer.window.add(name, value, divisor)``; a row here shows it in the console, the pictures, the
cards and the report, and one in docs/logs.md says what it means.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

CONSOLE, PICTURE, RESULTS = "console", "loss.png", "results of the card"


@dataclass(frozen=True)
class Chart:
    """A picture of the report, against tokens; of held-out figures also against time, and with columns in its tables."""

    slug: str  # heading of its columns
    title: str
    unit: str  # of its axis
    scale: Callable[[float], float] = float  # from the value in the logs to the one that is drawn
    log: bool = False  # the value in the logs is the logarithm of what is drawn: differences are then ratios
    steady: bool = False  # the figure jumps around a level: its axis is from 0
    explained: str = ""  # a sentence under the picture


@dataclass(frozen=True)
class Measure:
    """A figure that is shown, or can choose the best checkpoint."""

    name: str  # in the logs; that of a held-out figure begins with eval_
    short: str = ""  # label in a line of the console, and beside other held-out figures
    is_logged: Callable[..., bool] = lambda args: True  # by a run with these settings, whose task is known
    better: str | None = None  # higher, lower, or None, where the best checkpoint cannot be chosen by it
    shown: tuple[str, ...] = ()  # places: CONSOLE and so on
    label: str = ""  # elsewhere; the short one by default
    form: Callable[[float], str] = "{:.4g}".format
    unit: str = ""  # of the value in the logs, where it is neither a share nor a count
    line: str = "-"  # style of its curve
    chart: Chart | None = None  # of the report; figures with the same one are drawn together

    @property
    def is_held_out(self) -> bool:
        return self.name.startswith("eval_")

    @property
    def bare_name(self) -> str:
        return self.name.removeprefix("eval_")

    @property
    def short_with_unit(self) -> str:
        return f"{self.short} ({self.unit})" if self.unit else self.short


def _headless(args) -> bool:
    return args.objective == "headless"


def _has_head(args) -> bool:
    return args.objective != "headless"


def _full_vocabulary(args) -> bool:
    return _has_head(args) or args.eval_full_vocabulary


def _perplexity(args) -> bool:
    return args.task == "clm" and _full_vocabulary(args)


def _without_bias(args) -> bool:
    return _headless(args) and args.eval_full_vocabulary


LOSS_CHART = Chart(
    "loss", "Training loss and floor", "nats",
    explained="Solid: training loss. Dashed: the floor under a headless loss, which comes from tokens that repeat among "
    "the candidates. Losses of different objectives are different quantities: compare the held-out figures.",
)  # fmt: skip
SPEED_CHART = Chart("speed", "Speed", "tokens per second", steady=True)
MEMORY_CHART = Chart("memory", "Peak memory", "GiB", lambda mebibytes: mebibytes / 1024, steady=True)
ACCURACY_CHART = Chart("accuracy", "Held-out accuracy", "accuracy (%)", lambda share: 100 * share)
# Perplexities are averaged and compared as cross-entropies, and every task has one.
PERPLEXITY_CHART = Chart(
    "perplexity", "Held-out perplexity", "perplexity (log scale)", lambda nats: math.exp(min(nats, 700.0)), log=True
)
LOSS = {"form": "{:.3f}".format, "unit": "nats"}

# In the order in which every place shows them.
# fmt: off
TRAINING = (
    Measure("loss", "loss", shown=(CONSOLE, PICTURE), chart=LOSS_CHART, **LOSS),
    Measure("loss_floor", "floor", _headless, shown=(CONSOLE, PICTURE), line="--", chart=LOSS_CHART, **LOSS),
    Measure("random_guess_loss", "random guess", _headless, shown=(PICTURE,), unit="nats", line=":"),
    Measure("tokens_per_second", "tok/s", shown=(CONSOLE,), form="{:,.0f}".format, chart=SPEED_CHART),
    Measure("grad_norm", "grad", shown=(CONSOLE,), form="{:.3g}".format),
    Measure("peak_memory_mib", chart=MEMORY_CHART),
)
EVALUATION = (
    Measure("eval_accuracy", "accuracy", _full_vocabulary, "higher", (CONSOLE, PICTURE, RESULTS), "held-out accuracy",
            "{:.2%}".format, line="o-", chart=ACCURACY_CHART),
    Measure("eval_cross_entropy", "cross-entropy", _full_vocabulary, "lower", (RESULTS,), unit="nats", line="o-",
            chart=PERPLEXITY_CHART),
    Measure("eval_perplexity", "perplexity", _perplexity, "lower", (CONSOLE, RESULTS), form="{:,.1f}".format),
    Measure("eval_loss", "pool loss", _headless, "lower", (CONSOLE,), **LOSS),
    Measure("eval_loss", "loss", _has_head, "lower", (CONSOLE,), **LOSS),
    Measure("eval_cross_entropy_without_bias", "", _without_bias, "lower"),
    Measure("eval_accuracy_without_bias", "", _without_bias, "higher"),
    Measure("eval_perplexity_without_bias", "", lambda args: _perplexity(args) and _headless(args), "lower"),
    Measure("eval_pool_accuracy", "", _headless, "higher"),
    Measure("eval_unseen_token_mass", "mass on unseen tokens", lambda args: args.objective == "sampled_softmax", "lower",
            (CONSOLE,), form="{:.2%}".format),
)
# fmt: on
MEASURES = TRAINING + EVALUATION


def shown_in(place: str) -> list[Measure]:
    """Return what a place shows, in its order."""
    return [measure for measure in MEASURES if place in measure.shown]


def higher_is_better(name: str) -> bool | None:
    """Direction of a held-out figure by its name, which may hold that of a dataset; None for a figure of a user's own."""
    found = (each.better == "higher" for each in EVALUATION if each.better and name.endswith(each.bare_name))
    return next(found, None)
