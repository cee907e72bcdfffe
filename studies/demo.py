#!/usr/bin/env python
"""Run the demo: pretrain a small decoder without a vocabulary head, then the same network with one
for the same time.

    python studies/demo.py --output_dir runs/make_demo

It takes any flag of `headless-trainer pretrain demo`; without --train_file, the texts are
docstrings found on the machine. Both models are scored on the same held-out documents, headless
with its free head, and plotted. The headless model is saved as an ordinary causal language model
and generates a sample.
"""

import importlib.util
import inspect
import json
import logging
import math
import re
import sys
import sysconfig
import time
import zlib
from pathlib import Path

import psutil
import torch
from transformers import TrainerCallback, set_seed
from transformers.utils import logging as transformers_logging

from headless_trainer.arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from headless_trainer.cli.preparation import make_trainer
from headless_trainer.cli.training import train
from headless_trainer.command_line import errors_in_one_line, parse_args
from headless_trainer.objective.prior import log_prior
from headless_trainer.presentation.pictures import Panel, Series, draw_panels, to_png
from headless_trainer.presentation.tables import markdown
from headless_trainer.reporting.curves import curves as curves_of

SETTINGS = [ModelArguments, DataArguments, HeadlessTrainingArguments]
# Our best recipe with a vocabulary head, at the best of the rates 8e-3, 16e-3 and 32e-3 for this
# preset.
VANILLA = [
    "--objective=vanilla",
    "--tie_word_embeddings=true",
    "--head_bias=prior",
    "--save_strategy=no",
    "--learning_rate=16e-3",
    "--muon_learning_rate=32e-3",
    "--lr_scheduler_type=constant",
    "--warmup_steps=0",
]
# Characters of all docstrings, read in a few seconds, and of the shortest: most shorter ones say
# "Return the name."
CHARACTERS = 6_000_000
LEAST_CHARACTERS = 100
# Between the shares of the processors that other programs use during the two runs.
LARGEST_DIFFERENCE = 0.1


def docstrings(folder: Path) -> list[str]:
    """Write docstrings of Python, torch and transformers, and return the flags that name the files.

    Source files are read, not imported. Whole folders are held out, since docstrings of one folder
    resemble each other.
    """
    roots = [Path(sysconfig.get_paths()["stdlib"])]
    for name in ("torch", "transformers"):
        roots.append(Path(importlib.util.find_spec(name).origin).parent)
    parts = {"train": [], "validation": []}
    seen = set()
    size = 0
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            within = path.relative_to(root)
            if size >= CHARACTERS or {"site-packages", "test", "tests"} & {*within.parts}:
                continue
            # One folder in twenty, the same on every machine.
            is_held_out = zlib.crc32(within.parent.as_posix().encode()) % 20 == 0
            part = "validation" if is_held_out else "train"
            source = path.read_text("utf-8", "replace")
            for text in re.findall(r'"""(.*?)"""', source, re.DOTALL):
                text = inspect.cleandoc(text)
                if len(text) >= LEAST_CHARACTERS and text not in seen:
                    seen.add(text)
                    size += len(text)
                    parts[part].append(json.dumps({"text": text}) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    flags = []
    for part, lines in parts.items():
        file = folder / f"{part}.jsonl"
        file.write_text("".join(lines), encoding="utf-8")
        flags += [f"--{part}_file", str(file)]
    return flags


class Clock(TrainerCallback):
    """Ends a run after some seconds of training steps; until then its rates rise and fall like
    those of the preset.
    """

    def __init__(self, seconds: float, warmup: float):
        self.seconds = seconds
        self.warmup = warmup
        self.used = 0.0

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        self.begun = time.perf_counter()
        # The share of the run's time that is over.
        self.share = self.used / self.seconds
        rising = (self.share + 0.01) / self.warmup
        falling = 0.5 * (1 + math.cos(math.pi * min(1.0, self.share)))
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * min(rising, falling)

    def on_step_end(self, args, state, control, **kwargs):
        self.used += time.perf_counter() - self.begun
        control.should_training_stop |= self.used >= self.seconds
        # After each quarter of the time.
        control.should_evaluate |= int(4 * self.used / self.seconds) > int(4 * self.share)


class OtherPrograms(TrainerCallback):
    """Measures how busy other programs keep the processors while a model trains.

    Attributes:
        share: of the time of all processors, from 0 to 1.
    """

    def __init__(self) -> None:
        self.share = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        self.started = time.perf_counter()
        self.used_before = seconds_of_other_programs()

    def on_train_end(self, args, state, control, **kwargs):
        used = seconds_of_other_programs() - self.used_before
        available = (time.perf_counter() - self.started) * psutil.cpu_count()
        # The readings of the machine and of this process are not of the same moment.
        self.share = max(0.0, used / available)


def seconds_of_other_programs() -> float:
    """Return the processor time that all other programs have used so far."""
    machine = psutil.cpu_times()
    of_all = machine.user + machine.system
    # Not every system tells the time of programs of low priority, and of other virtual machines.
    of_all += getattr(machine, "nice", 0.0) + getattr(machine, "steal", 0.0)
    own = psutil.Process().cpu_times()
    return of_all - own.user - own.system


def main(argv: list[str] | None = None) -> None:
    if argv is None:
        argv = sys.argv[1:]
    argv = ["demo", *argv]
    with errors_in_one_line(ValueError, OSError):
        flags = {word.partition("=")[0].strip("-").replace("-", "_") for word in argv}
        if not {"train_file", "dataset_name"} & flags:
            argv += docstrings(Path("runs", "docstrings"))
        headless = make_trainer(*parse_args(SETTINGS, argv))
        logging.getLogger("headless_trainer").setLevel(logging.WARNING)
        transformers_logging.set_verbosity_error()
        folder = Path(headless.args.output_dir)
        args = headless.args
        say(f"headless: {args.max_steps} steps of {args.train_batch_size} rows")
        beside_headless = OtherPrograms()
        headless.add_callback(beside_headless)
        train(headless)
        model = headless.language_model()
        model.save_pretrained(folder / "lm")
        headless.processing_class.save_pretrained(folder / "lm")

        say("with a vocabulary head, for the same time")
        vanilla_flags = [
            *VANILLA,
            *("--output_dir", f"{folder}_vanilla"),
            # With the tokenizer that the headless run has trained.
            "--train_tokenizer=false",
            *("--tokenizer_name", str(folder)),
            # Any other size than the default would warn that no tokenizer of it is trained.
            f"--vocab_size={ModelArguments.vocab_size}",
            # More steps than the time allows: the clock ends the run, and evaluates.
            f"--max_steps={4 * args.max_steps}",
            # Nor does it come to an evaluation that the clock does not ask for.
            f"--eval_steps={4 * args.max_steps}",
        ]
        vanilla = make_trainer(*parse_args(SETTINGS, [*argv, *vanilla_flags]))
        logging.getLogger("headless_trainer").setLevel(logging.WARNING)
        vanilla.add_callback(Clock(headless.window.train_seconds, warmup=0.1))
        beside_vanilla = OtherPrograms()
        vanilla.add_callback(beside_vanilla)
        train(vanilla)
    draw(
        {"headless, with its free head": headless, "with a vocabulary head": vanilla},
        folder / "comparison.png",
    )
    show(folder, headless, vanilla, model)
    tell_of_other_programs(beside_headless.share, beside_vanilla.share)


def say(text: str) -> None:
    """Print a line with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def last(trainer, name: str) -> float:
    """Return the value that a run logged last under a name."""
    return next(logs[name] for logs in reversed(trainer.state.log_history) if name in logs)


def draw(trainers: dict, path: Path) -> None:
    """Draw held-out perplexity against the time of training steps."""
    series = []
    for label, trainer in trainers.items():
        window = trainer.window
        end = (trainer.state.global_step, window.tokens_seen, window.train_seconds)
        logged = curves_of(trainer.state.log_history, end).dropna(subset=["eval_cross_entropy"])
        perplexities = logged["eval_cross_entropy"].map(math.exp)
        series.append(Series(logged["train_seconds"], perplexities, "o-", label=label))
    axis = {"xlabel": "seconds of training steps", "ylabel": "held-out perplexity", "yscale": "log"}
    path.write_bytes(to_png(draw_panels([Panel(series, **axis)], size=(6, 4))))


def show(folder: Path, headless, vanilla, model) -> None:
    """Print the table, a sample, the paths of picture and model, and what to do next."""
    ids = torch.tensor(headless.eval_dataset["input_ids"][:])[:, 1:]
    nats_by_frequencies = -log_prior(headless.token_counts)[ids].mean().item()
    rows = [("token frequencies alone", "", "", perplexity(nats_by_frequencies))]
    for name, run in (
        ("headless, with its free head", headless),
        ("with a vocabulary head", vanilla),
    ):
        tokens = f"{run.window.tokens_seen / 1e6:.2f} M"
        seconds = f"{run.window.train_seconds:.0f} s"
        rows.append((name, tokens, seconds, perplexity(last(run, "eval_cross_entropy"))))
    print("\n" + markdown(("held out", "tokens", "training", "perplexity"), rows))
    tokenizer = headless.processing_class
    set_seed(0)
    start = tokenizer("Return the", return_tensors="pt", return_token_type_ids=False)
    sample = model.generate(**start, max_new_tokens=25, do_sample=True, top_p=0.8)
    print(f"\nIt writes: {tokenizer.decode(sample[0], skip_special_tokens=True)!r}")
    print(
        f"\n{folder}/comparison.png  perplexity against time\n{folder}/lm/             an "
        "ordinary causal language model"
    )
    print(
        "\nNext, on text of your own:\n  .venv/bin/headless-trainer pretrain recipe_decoder "
        "--train_file 'corpus/*.txt'"
    )


def tell_of_other_programs(during_headless: float, during_vanilla: float) -> None:
    """Say that the runs are not comparable if others disturbed one of them more than the other."""
    if abs(during_headless - during_vanilla) > LARGEST_DIFFERENCE:
        print(
            f"\nThese two are not comparable: other programs used {during_headless:.0%} of the "
            f"processors during the first run and {during_vanilla:.0%} during the second, so equal "
            "time was not equal work. Run the demo again while the machine does nothing else."
        )


def perplexity(nats: float) -> str:
    """Format a mean cross-entropy as a perplexity."""
    return f"{math.exp(nats):,.0f}"


if __name__ == "__main__":
    main()
