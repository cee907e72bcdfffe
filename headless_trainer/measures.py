"""The table of figures shown outside the logs: where, under which label, and whether higher or
lower is better.

To log a new figure, call ``trainer.window.add(name, value, divisor)``. If only some objectives log
it, add its name to theirs in objectives.py. Add a row here to show it in the console, a run's
picture or its card, and a row in docs/reference/logs.md to explain it. The report draws a figure
whose row has a chart; in the tables of the report, which compare models, held-out figures alone get
a column.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from .objectives import OBJECTIVES, objective_of

# Places that show figures.
CONSOLE = "console"
PICTURE = "loss.png"
RESULTS = "results of the card"


@dataclass(frozen=True)
class Chart:
    """A chart of the report, against tokens.

    Held-out figures also get one against time, and columns in its tables.
    """

    slug: str  # heading of its columns
    title: str
    unit: str  # of its axis
    scale: Callable[[float], float] = float  # from the logged value to the drawn one
    # Whether the logged value is the logarithm of the drawn one: differences are then ratios.
    log: bool = False
    steady: bool = False  # the figure fluctuates around a level: its axis starts at 0
    explained: str = ""  # a sentence under the picture


@dataclass(frozen=True)
class Measure:
    """A figure that is shown, or that can choose the best checkpoint."""

    name: str  # in the logs; held-out figures begin with eval_
    short: str = ""  # label in the console, and beside other held-out figures
    when: Callable[..., bool] = lambda args: True  # a run with these settings logs it
    better: str | None = None  # higher, lower, or None if it cannot choose the best checkpoint
    shown: tuple[str, ...] = ()  # places: CONSOLE and so on
    label: str = ""  # elsewhere; the short one by default
    form: Callable[[float], str] = "{:.4g}".format
    unit: str = ""  # of the logged value, unless it is a share or a count
    line: str = "-"  # style of its curve
    chart: Chart | None = None  # of the report; figures with the same chart are drawn together

    def is_logged(self, args) -> bool:
        """Return whether a run with these settings, whose task is known, logs the figure."""
        logged_by_some = any(self.name in objective.logs for objective in OBJECTIVES.values())
        if logged_by_some and self.name not in objective_of(args).logs:
            return False
        return self.when(args)

    @property
    def is_held_out(self) -> bool:
        return self.name.startswith("eval_")

    @property
    def bare_name(self) -> str:
        return self.name.removeprefix("eval_")


def _evaluates_pool(args) -> bool:
    return objective_of(args).evaluates_pool


def _full_vocabulary(args) -> bool:  # true for all other objectives
    return args.eval_full_vocabulary


# Of masked tokens, the exponential of the cross-entropy is no perplexity of the text.
def _perplexity(args) -> bool:
    return args.task == "clm" and _full_vocabulary(args)


LOSS_CHART = Chart(
    "loss",
    "Training loss and floor",
    "nats",
    explained="Solid: training loss. Dashed: the floor of a headless loss, due to tokens that "
    "repeat among the candidates. Losses of different objectives are not comparable: "
    "compare the held-out figures.",
)
SPEED_CHART = Chart("speed", "Speed", "tokens per second", steady=True)
MEMORY_CHART = Chart(
    "memory", "Peak memory", "GiB", lambda mebibytes: mebibytes / 1024, steady=True
)
ACCURACY_CHART = Chart("accuracy", "Held-out accuracy", "accuracy (%)", lambda share: 100 * share)
# Perplexities are averaged and compared as cross-entropies, and every task has one.
PERPLEXITY_CHART = Chart(
    "perplexity",
    "Held-out perplexity",
    "perplexity (log scale)",
    # Beyond about 709 a float overflows.
    lambda nats: math.exp(min(nats, 700.0)),
    log=True,
)
THREE_DECIMALS = "{:.3f}".format

# In the order in which they are shown everywhere.
TRAINING = (
    Measure(
        "loss",
        "loss",
        shown=(CONSOLE, PICTURE),
        form=THREE_DECIMALS,
        unit="nats",
        chart=LOSS_CHART,
    ),
    Measure(
        "loss_floor",
        "floor",
        shown=(CONSOLE, PICTURE),
        form=THREE_DECIMALS,
        unit="nats",
        line="--",
        chart=LOSS_CHART,
    ),
    Measure("random_guess_loss", "random guess", shown=(PICTURE,), unit="nats", line=":"),
    Measure(
        "tokens_per_second", "tok/s", shown=(CONSOLE,), form="{:,.0f}".format, chart=SPEED_CHART
    ),
    Measure("grad_norm", "grad", shown=(CONSOLE,), form="{:.3g}".format),
    Measure("peak_memory_mib", chart=MEMORY_CHART),
)
EVALUATION = (
    Measure(
        "eval_accuracy",
        "accuracy",
        _full_vocabulary,
        "higher",
        (CONSOLE, PICTURE, RESULTS),
        "held-out accuracy",
        "{:.2%}".format,
        line="o-",
        chart=ACCURACY_CHART,
    ),
    Measure(
        "eval_cross_entropy",
        "cross-entropy",
        _full_vocabulary,
        "lower",
        (RESULTS,),
        unit="nats",
        line="o-",
        chart=PERPLEXITY_CHART,
    ),
    Measure(
        "eval_perplexity",
        "perplexity",
        _perplexity,
        "lower",
        (CONSOLE, RESULTS),
        form="{:,.1f}".format,
    ),
    # One name in the logs, two meanings: a loss over a pool is smaller than one over the
    # vocabulary, so the console tells them apart.
    Measure(
        "eval_loss",
        "pool loss",
        _evaluates_pool,
        "lower",
        (CONSOLE,),
        form=THREE_DECIMALS,
        unit="nats",
    ),
    Measure(
        "eval_loss",
        "loss",
        lambda args: not _evaluates_pool(args),
        "lower",
        (CONSOLE,),
        form=THREE_DECIMALS,
        unit="nats",
    ),
    # Shown nowhere, but a run may choose its best checkpoint by them.
    Measure("eval_cross_entropy_without_bias", when=_full_vocabulary, better="lower"),
    Measure("eval_accuracy_without_bias", when=_full_vocabulary, better="higher"),
    Measure("eval_perplexity_without_bias", when=_perplexity, better="lower"),
    Measure("eval_pool_accuracy", better="higher"),
    Measure(
        "eval_unseen_token_mass",
        "mass on unseen tokens",
        better="lower",
        shown=(CONSOLE,),
        form="{:.2%}".format,
    ),
)
MEASURES = TRAINING + EVALUATION


def shown_in(place: str) -> list[Measure]:
    """Return the figures that a place shows, in order."""
    return [measure for measure in MEASURES if place in measure.shown]


def higher_is_better(name: str) -> bool | None:
    """Return whether higher is better for a held-out figure; None for unknown figures.

    Args:
        name: as in the logs. It may contain a dataset's name.
    """
    for measure in EVALUATION:
        if measure.better and name.endswith(measure.bare_name):
            return measure.better == "higher"
    return None
