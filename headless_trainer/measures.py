"""Everything that a training run logs, in one table: a row says what a figure is, when it is logged, and where it is shown.

The console, the pictures, the cards, the report, the choice of the best checkpoint and docs/logs.md read these rows. A new
figure is one call, ``trainer.window.add(name, value, divisor)``, and one row here, which says how it is shown.
``python -m headless_trainer.measures`` prints the tables of docs/logs.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from .tables import markdown

# Places where a figure is shown, besides the logs and the charts of the report.
CONSOLE, PICTURE, RESULTS = "console", "loss.png", "results of the card"
# When a figure is logged: words for docs/logs.md, and whether it is, for `HeadlessTrainingArguments` whose task is known.
HEADLESS = "headless", lambda args: args.objective == "headless"
VANILLA = "vanilla", lambda args: args.objective == "vanilla"
TIED = "unless the head has a matrix of its own (vanilla)", lambda args: True
CLM = "clm", lambda args: args.task == "clm"
FULL_VOCABULARY = (
    "unless `--eval_full_vocabulary false` (headless)",
    lambda args: args.objective == "vanilla" or args.eval_full_vocabulary,
)
WORLD = "`--negatives world`", lambda args: args.negatives == "world"
SPARSE = "`--sparse_embedding_updates`", lambda args: args.sparse_embedding_updates
SEVERAL = "on several processes", lambda args: args.world_size > 1


def compact(number: float) -> str:
    """A count in at most six characters: 12,345, 123k, 1.23M."""
    if number < 99_999.5:
        return f"{number:,.0f}"
    thousands = 1 if number < 999_500 else 2 if number < 999.5e6 else 3
    return f"{number / 1000**thousands:.3g}{' kMG'[thousands]}"


@dataclass(frozen=True)
class Chart:
    """A picture of the report, against tokens; of held-out figures also against time, and with columns in its tables.

    Attributes:
        slug: name of its file, and of its columns.
        title: what is drawn.
        unit: of its axis.
        scale: from the value in the logs to the one that is drawn.
        log: whether the value in the logs is the logarithm of what is drawn: differences are then ratios.
        steady: whether the figure jumps around a level: a running median is drawn, on an axis from 0.
        explained: a sentence under the picture.
    """

    slug: str
    title: str
    unit: str
    scale: Callable[[float], float] = float
    log: bool = False
    steady: bool = False
    explained: str = ""


@dataclass(frozen=True)
class Measure:
    """A figure that is logged.

    Attributes:
        name: in the logs; that of a held-out figure begins with ``eval_``.
        unit: of the value in the logs.
        meaning: for docs/logs.md.
        logged: conditions that must all hold, `HEADLESS` and so on.
        better: ``higher`` or ``lower``; None where neither is, and the best checkpoint cannot be chosen by it.
        short: label in a line of the console, and beside other held-out figures.
        label: elsewhere; the short one by default.
        form: how a value is written.
        shown: places, `CONSOLE` and so on.
        line: style of its curve.
        chart: of the report. Figures with the same one are drawn together.
    """

    name: str
    unit: str
    meaning: str
    logged: tuple[tuple[str, Callable], ...] = ()
    better: str | None = None
    short: str = ""
    label: str = ""
    form: Callable[[float], str] = "{:.4g}".format
    shown: tuple[str, ...] = ()
    line: str = "-"
    chart: Chart | None = None

    @property
    def is_held_out(self) -> bool:
        return self.name.startswith("eval_")

    @property
    def bare_name(self) -> str:
        return self.name.removeprefix("eval_")

    def labelled(self, label: str) -> str:
        """A label for a column, with the unit of what is no share and no count."""
        return f"{label} ({self.unit})" if self.unit == "nats" else label

    def is_logged(self, args) -> bool:
        """Whether a run with these `HeadlessTrainingArguments`, whose task is known, logs it."""
        return all(holds(args) for _, holds in self.logged)


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

# In the order in which every place shows them.
# fmt: off
TRAINING = (
    Measure("loss", "nats", "mean loss of the optimizer steps since the last log. Headless: cross-entropy among the "
            "candidates; vanilla: among the whole vocabulary. The two are different quantities",
            short="loss", form="{:.3f}".format, shown=(CONSOLE, PICTURE), chart=LOSS_CHART),
    Measure("loss_floor", "nats", "what `loss` cannot go below: targets that repeat among the candidates are their own "
            "negatives", (HEADLESS,), short="floor", form="{:.3f}".format, shown=(CONSOLE, PICTURE), line="--",
            chart=LOSS_CHART),
    Measure("random_guess_loss", "nats", "loss of equal scores for all candidates: log of `pool_size` where each loss "
            "has a pool of one size", (HEADLESS,),
            short="random guess", shown=(PICTURE,), line=":"),
    Measure("tokens_per_second", "tokens / s", "tokens that entered the model, padding left out, by seconds in training steps, "
            "since the last log", short="tok/s", form=compact, shown=(CONSOLE,), chart=SPEED_CHART),
    Measure("grad_norm", "-", "norm of the gradient of all parameters before clipping, at the last step",
            short="grad", form="{:.3g}".format, shown=(CONSOLE,)),
    Measure("learning_rate", "-", "learning rate at the last step"),
    Measure("epoch", "passes", "passes over the training rows so far"),
    Measure("tokens_seen", "tokens", "tokens that entered the model since the start of the run, padding left out, resumed "
            "parts included"),
    Measure("predicted_tokens", "tokens / step", "positions with a target in an optimizer step, mean since the last log"),
    Measure("train_seconds", "s", "time in training steps since the start of the run, resumed parts included; evaluating and "
            "saving left out"),
    Measure("peak_memory_mib", "MiB", "most memory held so far: tensors on the first process's accelerator, or that whole "
            "process on a CPU", chart=MEMORY_CHART),
    Measure("pool_tokens", "tokens", "distinct candidates of a loss, mean since the last log", (HEADLESS,)),
    Measure("pool_size", "tokens", "candidates of a loss with repetitions, mean since the last log", (HEADLESS,)),
    Measure("target_gradient_share", "0 to 1", "share of the embedding's gradient that comes from its role in the output (as "
            "candidate, as vocabulary head), on one micro-batch", (TIED,)),
    Measure("pool_exchange_bytes", "bytes / step", "candidates received from the other processes, by one process, mean since "
            "the last log", (WORLD, SEVERAL)),
    Measure("row_exchange_bytes", "bytes / step", "gradient rows of the embedding received from the other processes, by one "
            "process, mean since the last log", (SPARSE, SEVERAL)),
)
EVALUATION = (
    Measure("eval_loss", "nats", "pool loss, against a fixed set of candidates (`--eval_pool_size`): no perplexity follows "
            "from it", (HEADLESS,), "lower", "held-out pool loss", form="{:.3f}".format, shown=(CONSOLE,)),
    Measure("eval_loss", "nats", "the same as `eval_cross_entropy`", (VANILLA,), "lower", "held-out loss",
            form="{:.3f}".format, shown=(CONSOLE,)),
    Measure("eval_accuracy", "0 to 1", "share of predictions whose target has the best score of the whole vocabulary, with the "
            "same head as `eval_cross_entropy`", (FULL_VOCABULARY,), "higher", "accuracy", "held-out accuracy",
            "{:.2%}".format, (CONSOLE, PICTURE, RESULTS), "o-",
            ACCURACY_CHART),
    Measure("eval_cross_entropy", "nats", "over the whole vocabulary. Headless: with the free head, which adds the log "
            "frequency of tokens", (FULL_VOCABULARY,), "lower", "cross-entropy", shown=(RESULTS,), line="o-",
            chart=PERPLEXITY_CHART),
    Measure("eval_perplexity", "-", "exp of `eval_cross_entropy`", (CLM, FULL_VOCABULARY), "lower", "perplexity",
            "held-out perplexity", "{:,.1f}".format, (CONSOLE, RESULTS)),
    Measure("eval_cross_entropy_without_bias", "nats", "with the embeddings alone as head",
            (HEADLESS, FULL_VOCABULARY), "lower"),
    Measure("eval_accuracy_without_bias", "0 to 1", "with the embeddings alone as head",
            (HEADLESS, FULL_VOCABULARY), "higher"),
    Measure("eval_perplexity_without_bias", "-", "exp of `eval_cross_entropy_without_bias`",
            (CLM, HEADLESS, FULL_VOCABULARY), "lower"),
    Measure("eval_pool_accuracy", "0 to 1", "share of predictions whose target has the best score of the fixed candidates",
            (HEADLESS,), "higher"),
    Measure("eval_pool_tokens", "tokens", "distinct fixed candidates", (HEADLESS,)),
    Measure("eval_pool_size", "tokens", "fixed candidates with repetitions", (HEADLESS,)),
    Measure("eval_predicted_tokens", "tokens", "predictions of the whole evaluation (in training, `predicted_tokens` is that "
            "of one step)"),
    Measure("eval_layer_<i>_mean_cosine", "-1 to 1", "mean cosine between the hidden states of one batch: 0 the embedding, "
            "then each layer. Near 1, all agree and say nothing"),
    Measure("eval_runtime", "s", "time of the evaluation"),
    Measure("eval_samples_per_second", "rows / s", "speed of the evaluation"),
    Measure("eval_steps_per_second", "batches / s", "speed of the evaluation"),
)
END = (  # from transformers
    Measure("train_loss", "nats", "mean of `loss` over all steps since the start or the resume"),
    Measure("train_runtime", "s", "wall-clock time since the start or the resume, evaluating and saving included"),
    Measure("train_samples_per_second", "rows / s", "rows by `train_runtime`"),
    Measure("train_steps_per_second", "steps / s", "optimizer steps by `train_runtime`"),
    Measure("total_flos", "floating-point operations", "transformers' estimate: 6 x tokens x parameters without the embedding"),
)
# fmt: on
MEASURES = TRAINING + EVALUATION + END


def shown_in(place: str) -> list[Measure]:
    """What a place shows, in its order."""
    return [measure for measure in MEASURES if place in measure.shown]


def higher_is_better(name: str) -> bool:
    """Direction of a held-out figure by its name in the logs, which may hold the name of one of several datasets."""
    return name.endswith(tuple(measure.bare_name for measure in EVALUATION if measure.better == "higher"))


def table(measures: tuple[Measure, ...]) -> str:
    """Rows in Markdown, as docs/logs.md has them."""
    rows = []
    for each in measures:
        places = [f"{place} as {each.short}" if place == CONSOLE else place for place in each.shown]
        places += [f"report ({each.chart.slug})"] if each.chart else []
        places += [f"best checkpoint ({each.better})"] if each.better else []
        logged = ", ".join(words for words, _ in each.logged) or "always"
        rows.append((f"`{each.name}`", each.unit, each.meaning, logged, ", ".join(places)))
    return markdown(("name", "unit", "meaning", "logged", "shown"), rows)


if __name__ == "__main__":
    print("\n\n".join(map(table, (TRAINING, EVALUATION, END))))
