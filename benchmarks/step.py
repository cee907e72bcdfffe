#!/usr/bin/env python
"""Time one training step: headless, the trunk alone, sampled softmax, our vanilla trainer, and
transformers' own model.

    python benchmarks/step.py
    python benchmarks/step.py --vocab_size 120000
    python benchmarks/step.py --length 512 --batch_size 1 2 4 8 --figure batch_size.png
    python benchmarks/step.py --model xlm-roberta-base --batch_size 4

This is `headless-trainer compare-steps` for the models of the project's figures, whose weights are
random, and for several batch sizes: `headless_trainer.timing` takes the steps and the time. All
methods share the trunk (BERT-small by default), the batches, the masking rate and AdamW, and take
turns, each in a process of its own. "trunk only" trains the trunk on a loss that costs nothing: no
objective can be cheaper. "transformers" is ...ForMaskedLM / ...ForCausalLM as run_mlm / run_clm run
it, with logits at every position. "rows" means that AdamW updates only the rows that a step reads.
--pool_size adds headless steps with pools of that size. Peak memory is that of the process: on a
CPU with Python and its libraries, on a GPU of tensors alone. --figure draws time and memory against
the batch size, like figure 3 of the paper.
"""

import argparse
import json
import math
import statistics
from pathlib import Path

from loss import DEVICE, machine, results_argument, write_results

from headless_trainer.cards.facts import software
from headless_trainer.command_line import parse_args
from headless_trainer.presentation.pictures import Panel, Series, draw_panels, to_png
from headless_trainer.presentation.tables import markdown
from headless_trainer.timing.step_arguments import ARGUMENT_CLASSES, TRANSFORMERS, TRUNK
from headless_trainer.timing.step_rows import rows_of, stand_in_tokenizer
from headless_trainer.timing.timed_training import TurnRequest
from headless_trainer.timing.turns import Measurements, measure

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def sizes(*values: int, **others: int) -> dict[str, int]:
    """Return the settings of a configuration: width, layers, heads, width between, and others."""
    return dict(zip(SIZES, values, strict=True)) | others


# Task, architecture and settings of each model.
MODELS = {
    "bert-small": ("mlm", "bert", sizes(512, 4, 8, 2048)),
    "bert-base": ("mlm", "bert", {}),
    "table-10-decoder": ("clm", "gpt2", {"n_embd": 192, "n_layer": 3, "n_head": 3}),
    "pythia-70m": ("clm", "gpt_neox", sizes(512, 6, 8, 2048)),
    "xlm-roberta-base": (
        "mlm",
        "xlm-roberta",
        {"max_position_embeddings": 514, "type_vocab_size": 1},
    ),
    "mmbert-small": ("mlm", "modernbert", sizes(384, 22, 6, 1152)),
    "gemma-3-270m": (
        "clm",
        "gemma3_text",
        sizes(640, 18, 4, 2048, num_key_value_heads=1, head_dim=256),
    ),
    "studies-roformer": ("mlm", "roformer", sizes(128, 2, 2, 512)),
    "tiny-encoder": ("mlm", "bert", sizes(64, 2, 2, 128)),
    "tiny-decoder": ("clm", "gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 2}),
}
VOCABULARIES = {"xlm-roberta-base": 250_002, "mmbert-small": 256_000, "gemma-3-270m": 262_144}
VOCABULARY_OF_OTHERS = 50_304

# Line of `compare-steps` and further flags of each method.
METHODS: dict[str, tuple[str, list[str]]] = {
    "headless": ("headless", []),
    "trunk only": (TRUNK, []),
    "sampled softmax": ("sampled_softmax", []),
    "sampled softmax, rows": ("sampled_softmax", ["--sparse_embedding_updates"]),
    "our vanilla": ("vanilla", []),
    "transformers": (TRANSFORMERS, []),
}
READINGS_OF_A_TURN = 3


def main() -> None:
    args = parse_arguments()
    measured = {}
    for batch_size in args.batch_size:
        measured[batch_size] = measure_batch(args, batch_size)
    write_results(args.results_dir, measured)
    if args.figure:
        draw(measured, args.figure)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="bert-small")
    parser.add_argument("--vocab_size", type=int, help="default: the model's own, or 50,304")
    parser.add_argument("--batch_size", type=int, nargs="+", default=[8])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9, help="timed steps of each method")
    parser.add_argument("--pool_size", type=int, nargs="*", default=[])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--figure", help="PNG to write")
    results_argument(parser)
    args = parser.parse_args()
    if args.vocab_size is None:
        args.vocab_size = VOCABULARIES.get(args.model, VOCABULARY_OF_OTHERS)
    return args


def measure_batch(args: argparse.Namespace, batch_size: int) -> dict[str, dict]:
    """Print a table of one batch size, and return seconds, ratio and peak MiB of each method.

    The ratio is the median time over that of the first method, round by round.
    """
    methods = methods_of(args)
    flags = flags_of(args, batch_size)
    model_args, data_args, settings = parse_args(ARGUMENT_CLASSES, flags)
    task, _, _ = MODELS[args.model]
    tokenizer = stand_in_tokenizer(args.vocab_size)
    rows, _ = rows_of(tokenizer, model_args, data_args, settings, task)

    def request_of(method: str, seconds: float) -> TurnRequest:
        line, more_flags = methods[method]
        return TurnRequest([*flags, *more_flags], line, task, rows, seconds, READINGS_OF_A_TURN)

    rounds = math.ceil(args.repeats / READINGS_OF_A_TURN)
    measured = measure(request_of, list(methods), seconds=math.inf, rounds=rounds)
    print_table(args, batch_size, measured)
    first = next(iter(measured.values()))
    if not first.was_timed:
        return {}
    return {
        method: {
            "seconds": [seconds for turn in measurements.seconds for seconds in turn],
            "ratio": measurements.time_over(first),
            "mib": measurements.peak_mib,
        }
        for method, measurements in measured.items()
        if measurements.was_timed
    }


def methods_of(args: argparse.Namespace) -> dict[str, tuple[str, list[str]]]:
    """Return the line of `compare-steps` and further flags of each method, also of each pool."""
    methods = {name: METHODS[name] for name in args.methods}
    for size in args.pool_size:
        methods[f"headless, pools of {size:,}"] = ("headless", ["--pool_size", str(size)])
    return methods


def flags_of(args: argparse.Namespace, batch_size: int) -> list[str]:
    """Return the flags of `compare-steps` for a model and a batch size."""
    _, model_type, settings = MODELS[args.model]
    flags = ["--model_type", model_type, "--vocab_size", str(args.vocab_size)]
    flags += ["--per_device_train_batch_size", str(batch_size)]
    flags += ["--max_seq_length", str(args.length)]
    if settings:
        flags += ["--config_overrides", json.dumps(settings)]
    if args.bf16:
        flags.append("--bf16")
    return flags


def print_table(
    args: argparse.Namespace, batch_size: int, measured: dict[str, Measurements]
) -> None:
    """Print the times, ratios and peaks of one batch size, and why a method has none."""
    first = next(iter(measured.values()))
    rows = []
    for method, measurements in measured.items():
        if not measurements.was_timed:
            rows.append((method, measurements.reason, "", ""))
            continue
        ratio = ""
        if first.was_timed:
            ratio = f"{measurements.time_over(first):.2f}"
        milliseconds = f"{1000 * measurements.median:.1f}"
        rows.append((method, milliseconds, ratio, f"{measurements.peak_mib:,.0f}"))
    size = f"{args.model}, {batch_size} x {args.length} tokens, V = {args.vocab_size:,}"
    precision = "bf16" if args.bf16 else "float32"
    print(f"{size}, {precision}, {machine(DEVICE)}, {software()['Versions']}\n")
    headings = ("step", "median ms", "over the first, round by round (median)", "peak MiB")
    print(f"{markdown(headings, rows)}\n")


def draw(measured: dict[int, dict[str, dict]], path: str) -> None:
    """Draw time and memory of each method against the number of rows in a batch."""
    batch_sizes = list(measured)
    methods = list(measured[batch_sizes[0]])

    def panel(label: str, values: dict[str, list[float]]) -> Panel:
        series = [Series(batch_sizes, values[name], "o-", label=name) for name in methods]
        highest = max(max(values_of_method) for values_of_method in values.values())
        return Panel(
            series,
            xlabel="rows in a batch",
            xticks=batch_sizes,
            ylabel=label,
            ylim=(0, 1.05 * highest),
        )

    milliseconds = {
        name: [1000 * statistics.median(measured[size][name]["seconds"]) for size in batch_sizes]
        for name in methods
    }
    memory = {name: [measured[size][name]["mib"] for size in batch_sizes] for name in methods}
    panels = [panel("milliseconds of a step", milliseconds), panel("peak memory, MiB", memory)]
    Path(path).write_bytes(to_png(draw_panels(panels, legend="first")))


if __name__ == "__main__":
    main()
