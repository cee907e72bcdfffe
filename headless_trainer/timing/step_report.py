"""Compares the training steps of a model, and presents what was measured as a table and as JSON."""

import dataclasses
import shlex
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedConfig

from ..arguments import DataArguments
from ..cards.facts import count, hardware, model_name, software
from ..command_line import parse_args, without_tokens
from ..corpus.tokenization import id_count
from ..models.loading import load_config
from ..models.positions import check_length
from ..models.trunk import check_one_stack, infer_task, saved_class_with_head
from ..presentation.tables import markdown
from .advice import advise
from .exact_heads import LIBRARIES
from .step_arguments import (
    ARGUMENT_CLASSES,
    LABELS,
    LINES,
    CompareStepsArguments,
    TimedModelArguments,
)
from .step_rows import distinct_tokens, find_tokenizer, rows_of, tokens_of_step
from .timed_training import TurnRequest
from .turns import Measurements, head_share, measure

HEADINGS = ("objective", "s / step", "tokens / s", "peak MiB", "head's share of the step")


@dataclasses.dataclass
class StepComparison:
    """The measured steps of a model.

    Attributes:
        model: its name.
        task: ``mlm`` or ``clm``.
        has_head: whether it is a checkpoint with a head.
        shape: batch, length, micro-batches of a step and vocabulary size.
        precision: of the computation.
        rows: where the tokens come from.
        tokens: mean number of tokens in a step, fewer than its shape says if rows are shorter.
        distinct: mean number of distinct tokens in a step.
        machine: device and threads.
        measured: by objective.
    """

    model: str
    task: str
    has_head: bool
    shape: dict[str, int]
    precision: str
    rows: str
    tokens: float
    distinct: float
    machine: str
    flags: list[str]  # of the command
    measured: dict[str, Measurements]

    @property
    def advice(self) -> str:
        return advise(self.measured, self.has_head)

    @property
    def reliability(self) -> str:
        """How many steps the medians are of, and how far the rounds agree."""
        timed = [measurements for measurements in self.measured.values() if measurements.was_timed]
        if not timed:
            return "Nothing was timed."
        readings = sum(len(turn) for measurements in timed for turn in measurements.seconds)
        readings_of_one = readings / len(timed)
        rounds = max(len(measurements.seconds) for measurements in timed)
        spread = 100 * max(measurements.spread for measurements in timed)
        if rounds == 1:
            return (
                f"Medians of {readings_of_one:.0f} readings, which differ by at most "
                f"{spread:.0f} %."
            )
        return (
            f"Medians of {readings_of_one:.0f} readings in {rounds} rounds, which differ by at "
            f"most {spread:.0f} %."
        )

    def text(self) -> str:
        """Return what the command prints."""
        # Those of the whole language model, head included: `vanilla` trains all of it.
        trained = self.measured.get("vanilla", Measurements()).parameters
        parameters = ""
        if trained:
            parameters = f", {trained / 1e6:,.1f} M parameters"
        micro_batches = self.shape["micro_batches"]
        times = ""
        if micro_batches > 1:
            times = f"{micro_batches} x "
        rows = [self._cells(name) for name in self.measured]
        paragraphs = [
            f"{self.model} ({self.task}{parameters}, V = {self.shape['vocab_size']:,}), "
            f"{times}{self.shape['batch_size']} x {self.shape['max_seq_length']} tokens a "
            f"step, {self.precision}\n"
            f"{self.machine}, {software()['Versions']}\n"
            f"{self.rows}; a step has {self.tokens:,.0f} tokens on average, {self.distinct:,.0f} "
            "of them distinct",
            markdown(HEADINGS, rows, left=1),
        ]
        reasons = [
            f"Not timed: {LABELS.get(name, name)}: {measurements.reason}."
            for name, measurements in self.measured.items()
            if measurements.reason is not None
        ]
        if reasons:
            paragraphs.append("\n".join(reasons))
        paragraphs += [self.reliability, self.advice]
        return "\n\n".join(paragraphs)

    def _cells(self, name: str) -> tuple[str, ...]:
        label = LABELS.get(name, name)
        measurements = self.measured[name]
        if not measurements.was_timed:
            return (label, "-", "-", "-", "-")
        share = head_share(measurements, self.measured)
        shown_share = "-"
        if share is not None:
            shown_share = f"{100 * share:.0f} %"
        return (
            label,
            f"{measurements.median:,.4g}",
            f"{self.tokens / measurements.median:,.0f}",
            f"{measurements.peak_mib:,.0f}",
            shown_share,
        )

    def as_json(self) -> dict[str, Any]:
        """Return everything that was measured, with its origin, for a JSON file."""
        objectives: dict[str, dict[str, Any]] = {}
        for name, measurements in self.measured.items():
            if not measurements.was_timed:
                objectives[name] = {"reason": measurements.reason}
                continue
            objectives[name] = {
                "seconds": measurements.seconds,
                "median_seconds": measurements.median,
                "tokens_per_second": self.tokens / measurements.median,
                "peak_mib": measurements.peak_mib,
                "head_share": head_share(measurements, self.measured),
                "parameters": measurements.parameters,
            }
        command = shlex.join(["headless-trainer", "compare-steps", *self.flags])
        origin = {"Command": command, **software(), "Machine": self.machine}
        of_steps = ("rows", "tokens", "distinct")
        described = ("model", "task", "has_head", "shape", "precision", *of_steps)
        return {
            "origin": origin,
            **{name: getattr(self, name) for name in described},
            "objectives": objectives,
            "advice": self.advice,
        }


def compare_steps(
    argv: list[str],
    rounds: int | None = None,
    readings: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> StepComparison:
    """Time the steps of a model with each objective, as `headless-trainer compare-steps` does.

    Args:
        argv: flags of the command.
        rounds: number of turns of each objective, instead of as many as fit into ``--seconds``.
        readings: timed readings of a turn, likewise.
        tell: is told what happens now.

    Raises:
        ValueError: if the arguments contradict each other, or name a model or texts that cannot be
            used. An objective that fails is a reason in the result.
    """
    model_args, data_args, args = parse_args(ARGUMENT_CLASSES, argv)
    config = load_config(model_args)
    check_one_stack(config, type(config).__name__)
    task = args.task or infer_task(config)
    check_length(config, data_args.max_seq_length)
    tokenizer = find_tokenizer(model_args, config)
    rows, source = rows_of(tokenizer, model_args, data_args, args, task)
    rows_of_step = args.per_device_train_batch_size * args.gradient_accumulation_steps

    # Processes get the flags rather than a model, and make it anew for each turn.
    def request_of(name: str, seconds: float) -> TurnRequest:
        return TurnRequest(argv, name, task, rows, seconds, readings)

    names = objectives_of(args)
    measured = measure(request_of, names, args.seconds, rounds, tell)
    # A checkpoint keeps its embedding, and a new model gets a row for each token.
    vocab_size = id_count(tokenizer)
    if model_args.model_name_or_path:
        vocab_size = config.get_text_config().vocab_size
    return StepComparison(
        model=name_of(model_args, config),
        task=task,
        has_head=bool(model_args.model_name_or_path and saved_class_with_head(config)),
        shape=shape_of(data_args, args, vocab_size),
        precision=precision_of(args),
        rows=source,
        tokens=tokens_of_step(rows, rows_of_step),
        distinct=distinct_tokens(rows, rows_of_step),
        machine=f"{hardware(args.device)}, {count(torch.get_num_threads(), 'thread')}",
        flags=without_tokens(argv, [model_args, data_args, args]),
        measured=measured,
    )


def objectives_of(args: CompareStepsArguments) -> list[str]:
    """Return the lines of the table: by default those of other libraries only on a GPU."""
    if args.objectives:
        return [name for name in LINES if name in args.objectives]
    if args.device.type == "cuda":
        return list(LINES)
    return [name for name in LINES if name not in LIBRARIES]


def name_of(model_args: TimedModelArguments, config: PreTrainedConfig) -> str:
    source = model_args.model_name_or_path or model_args.config_name
    if source:
        return model_name(source)
    return config.model_type


def shape_of(
    data_args: DataArguments, args: CompareStepsArguments, vocab_size: int
) -> dict[str, int]:
    return {
        "batch_size": args.per_device_train_batch_size,
        "micro_batches": args.gradient_accumulation_steps,
        "max_seq_length": data_args.max_seq_length,
        "vocab_size": vocab_size,
    }


def precision_of(args: CompareStepsArguments) -> str:
    if args.bf16:
        return "bfloat16"
    if args.fp16:
        return "float16"
    return "float32"
